#!/usr/bin/env bash
# bundle.sh BUILD OUT TORCH_VERSION [--gpu-tests]: the programs of a build, with the libraries that a Linux with PyTorch
# lacks, in the folder OUT and as OUT.tar.gz. LibTorch, libstdc++ and the C library are the other machine's own.
set -euo pipefail
build=$1 out=$2 torch_version=$3
programs=(resnet_pipeline transformer_pipeline parameter_server lstm_ensemble troupe)
[ "${4:-}" != --gpu-tests ] || programs+=(card_parity card_speed card_nccl)
theirs='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libutil\.|libresolv\.|libstdc\+\+|libgcc_s)'
theirs+='|^(libtorch|libc10|libgomp|libcu|libnv)'

rm -rf "$out" "$out.tar.gz"
mkdir -p "$out"/{bin,programs,lib/ucx}
for name in "${programs[@]}"; do
  install -s "$build/bin/$name" "$out/programs/$name"
  ln -s ../start "$out/bin/$name"
done
. "$(dirname "${BASH_SOURCE[0]}")/ucx_with_cuda.sh"
ldd "${programs[@]/#/$build/bin/}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u |
  while read -r name path; do
    [[ $name =~ $theirs ]] || install -s -m 644 "$(readlink -f "$path")" "$out/lib/$name"
  done
if [ "${4:-}" = --gpu-tests ]; then
  mkdir "$out/gpu"
  cp tests/gpu/*.py tests/gpu/run.sh "$out/gpu"
fi
# UCX opens its transports by their names, in a folder that is compiled in if no variable names another.
ucx=$(ldd "$build/bin/resnet_pipeline" | awk '$1 == "libuct.so.0" {print $3}')
for transport in "$(dirname "$(readlink -f "$ucx")")"/ucx/libuc[tm]_*.so.0; do
  install -s -m 644 "$(readlink -f "$transport")" "$out/lib/ucx/$(basename "$transport")"
done

cat >"$out/start" <<START
#!/bin/sh
# Runs the program of the name that this was called by, with this machine's own LibTorch $torch_version.
set -eu
here=\$(dirname "\$(readlink -f "\$0")")
torch=\${TROUPE_TORCH_DIR:-}
[ -n "\$torch" ] || torch=\$(python3 -c '
import importlib.util
print(importlib.util.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) || {
  echo "\$(basename "\$0"): there is no PyTorch: pip install torch==$torch_version, or set TROUPE_TORCH_DIR" >&2
  exit 2
}
version=\$(sed -n "s/^__version__ = '\\([^'+]*\\).*/\\1/p" "\$torch/version.py" 2>/dev/null || true)
if [ "\$version" != "$torch_version" ]; then
  echo "\$(basename "\$0"): \$torch is PyTorch \${version:-of no version}, and this needs $torch_version" >&2
  exit 2
fi
export LD_LIBRARY_PATH="\$here/lib:\$torch/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export UCX_MODULE_DIR="\$here/lib/ucx"
exec "\$here/programs/\$(basename "\$0")" "\$@"
START
chmod +x "$out/start"

needs() {
  find "$out" -type f -exec objdump -T {} + 2>/dev/null | grep -oE "$1_[0-9.]+" | sort -uV | tail -n 1
}
tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
echo "$out.tar.gz: $(du -h --apparent-size "$out.tar.gz" | cut -f 1), for x86-64 with PyTorch $torch_version," \
  "$(needs GLIBC) and $(needs GLIBCXX) or newer"
