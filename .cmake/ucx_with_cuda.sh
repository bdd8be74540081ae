# shellcheck shell=bash
# To be sourced: programs take the UCX that moves the memory of GPUs in place of Debian's, where `./dev setup --cuda`
# has installed it.
for libucx in "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"/.venv/lib/python3*/site-packages/libucx/lib; do
  [ -d "$libucx" ] || continue
  export LD_LIBRARY_PATH="$libucx${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" UCX_MODULE_DIR="$libucx/ucx"
done
