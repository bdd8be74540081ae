#!/usr/bin/env bash
# bare_root.sh BUILD TORCH TORCH_VERSION: bundles the programs of a build and trains with them in a root that
# has a C library, a shell, a few of its tools and LibTorch: with the bits of the program as it was built.
# Exits with 77 where a root of one's own cannot be made.
set -euo pipefail
build=$1 torch=$2 version=$3 bundle=$(dirname "$(readlink -f "$0")")/../../.cmake/bundle.sh

as_root=()
[ "$(id -u)" = 0 ] || as_root=(--map-root-user)
if ! unshare --mount "${as_root[@]}" true 2>/dev/null; then
  echo "this user can make no mount namespace"
  exit 77
fi

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$bundle" "$build" "$made/troupe" "$version"

run=(--model resnet18 --data synthetic:3x32x32:10:32 --batch-size 16 --micro-batches 4 --steps 2 --no-eval
  --no-progress --threads-per-stage 1)
"$build/bin/resnet_pipeline" "${run[@]}" --save "$made/expected" >/dev/null

root=$made/root
mkdir -p "$root"/{bin,etc,proc,dev,sys,tmp,lib64,opt/site,bundle}
# put FILE: it and the libraries of the C and C++ runtimes that it needs, where they are here.
put() {
  local file
  for file in "$@" $(ldd "$@" 2>/dev/null | grep -oE '/[^ :]+' | sort -u); do
    mkdir -p "$root$(dirname "$file")"
    [ -e "$root$file" ] || cp -L "$file" "$root$file"
  done
}
put /bin/sh /usr/bin/{readlink,dirname,basename,sed,env,test}
runtime=$(ldd "$build/bin/resnet_pipeline" | grep -oE '/[^ :]+' |
  grep -E '/(ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libutil\.|libstdc\+\+|libgcc_s)')
put $runtime

unshare --mount "${as_root[@]}" bash -euo pipefail -c '
  root=$1 made=$2 site=$3; shift 3
  for name in proc dev sys; do mount --rbind "/$name" "$root/$name"; done
  mount --bind "$site" "$root/opt/site"; mount --bind "$made/troupe" "$root/bundle"
  start=(chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin)
  for link in shm tcp; do
    "${start[@]}" TROUPE_TORCH_DIR=/opt/site/torch /bundle/bin/resnet_pipeline "$@" --link "$link" \
      --save "/tmp/$link" >/dev/null
    cmp "$root/tmp/$link" "$made/expected"
  done
  ! "${start[@]}" /bundle/bin/troupe --help 2>"$made/refused"
' bare_root "$root" "$made" "$(dirname "$torch")" "${run[@]}"
grep -q "^troupe: there is no PyTorch: pip install torch==$version" "$made/refused"
echo "the bundled programs train to the bits of the built ones, over shm and tcp"
