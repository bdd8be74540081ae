#!/usr/bin/env bash
# empty_root.sh BUILD TORCH: makes the packages of a build and uses them where nothing else of Troupe is:
# in a root that has the system's /usr, LibTorch and one package, and neither the sources nor the build.
# Exits with 77 where a root of one's own cannot be made.
set -euo pipefail
build=$1 torch=$2 here=$(dirname "$(readlink -f "$0")")

if ! unshare --mount --map-root-user true 2>/dev/null && ! unshare --mount true 2>/dev/null; then
  echo "this user can make no mount namespace"
  exit 77
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(--map-root-user)

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cpack --config "$build/CPackConfig.cmake" -B "$made" >"$made/log" || { cat "$made/log"; exit 1; }
deb=$(echo "$made"/*.deb) archive=$(echo "$made"/*.tar.gz)

dpkg-deb -f "$deb" Depends | tr ',' '\n' | while read -r package _; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
    { echo "the package depends on $package, which ./dev setup does not install"; exit 1; }
done

# in_root WHERE COMMAND: runs it in the root there, whose /usr it may write without a trace.
in_root() {
  unshare --mount "${as_root[@]}" bash -euo pipefail -c '
    root=$1 site=$2
    mount -t tmpfs none "$root"
    mkdir -p "$root"/{usr,etc,proc,dev,tmp,opt/site,package,outside,changes/{upper,work}}
    layers="lowerdir=/usr,upperdir=$root/changes/upper,workdir=$root/changes/work"
    mount -t overlay -o "$layers" none "$root/usr" || exit 77
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done
    mount --rbind /etc "$root/etc"; mount --rbind /proc "$root/proc"; mount --rbind /dev "$root/dev"
    mount --bind "$site" "$root/opt/site"
    mount --bind "$3" "$root/package"; mount --bind "$4" "$root/outside"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin bash -euo pipefail -c "$5"
  ' in_root "$1" "$(dirname "$torch")" "$made" "$here" "$2"
}

mkdir "$made/root"
in_root "$made/root" '
  test ! -e '"$here"' && test ! -e '"$build"'
  dpkg-deb -x /package/*.deb /
  cmake -S /outside -B /tmp/mean -G Ninja -DTROUPE_TORCH_DIR=/opt/site/torch
  ninja -C /tmp/mean mean
  /tmp/mean/mean | tee /dev/stderr | grep -q "after 4: 2.50"
'
in_root "$made/root" '
  mkdir /opt/elsewhere && tar -xzf /package/*.tar.gz -C /opt/elsewhere --strip-components 1
  cmake -S /outside -B /tmp/mean -G Ninja -DCMAKE_PREFIX_PATH=/opt/elsewhere \
    -DTROUPE_TORCH_DIR=/opt/site/torch
'
