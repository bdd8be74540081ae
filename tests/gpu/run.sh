#!/usr/bin/env bash
# What is to be seen on a machine with a GPU:
#   ./tests/gpu/run.sh [--rehearse] [--build DIR] [FILE.json]
#   ./gpu/run.sh [FILE.json]      in a bundle that `./dev bundle --gpu-tests` made
# Looks at the machine, runs the tests that concern GPUs and NCCL (not those of a bundle, which has
# none), compares what GPU 0 computes with float64 on the CPU (every layer, loss and optimizer),
# trains with one to four stages on it, has NCCL sum between processes, measures steps beside
# PyTorch's in eager mode (torchvision must be there), and runs the trainers with stages on the GPU
# through losses, interrupts and checkpoints. It takes about eleven minutes beside the tests. What was
# found goes into one JSON (build/gpu.json), from which `tests/gpu/report.py write-docs FILE.json`
# writes docs/gpu.md. Exits with 1 where a test, a comparison or a run failed, and with 3 where no
# GPU can be used: the report says why.
# --rehearse needs no GPU, and takes seconds: what is built in DIR is used as it is, tests are looked
# up instead of run, all else is short and on the device of tests, and what comes of it is checked
# and written into a copy of docs/gpu.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rehearse=false
bundled=false
build=build/release
if [[ -x $here/../start ]]; then
  bundled=true
  cd "$here/.."
  programs=bin
else
  cd "$here/../.."
fi
while [[ ${1:-} == --* ]]; do
  case $1 in
  --rehearse) rehearse=true ;;
  --build) build=$2 && shift ;;
  *) echo "run.sh: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done
$bundled || programs=$build/bin
if $bundled; then out=${1:-gpu.json}; else out=${1:-build/gpu.json}; fi
report() { python3 "$here/report.py" "$@"; }

tests=(unit_devices unit_fake_device unit_device_stage parity_devices parity_nccl
  conformance_collective unit_nccl unit_nccl_tensors nccl_processes devices_program)
if ! $rehearse && ! $bundled; then
  . .cmake/ucx_with_cuda.sh
  cmake --preset release >/dev/null
  cmake --build $build --target troupe card_parity card_nccl card_speed resnet_pipeline \
    transformer_pipeline "${tests[@]}"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$programs/troupe" devices --json >"$scratch/devices.json"
"$programs/troupe" devices

passed=passed
if $bundled; then
  passed=none
elif $rehearse; then
  all=$(ctest --test-dir "$build" -N)
  for each in "${tests[@]}"; do
    grep -q "^ *Test *#[0-9]*: $each:" <<<"$all" ||
      { echo "run.sh: there is no test of $each" >&2 && passed=failed; }
  done
else
  all=$(IFS='|' && echo "${tests[*]}")
  ctest --test-dir "$build" --output-on-failure -j1 -R "^($all):" || passed=failed
fi

# 3: no GPU can be used. Anything else that is not 0 is a failure.
compared=0
device=(cuda:0)
! $rehearse || device=(fake:0 --short)
timeout 900 "$programs/card_parity" "${device[@]}" >"$scratch/compared.json" || compared=$?
cat "$scratch/compared.json"

found=()
broken=0  # 1: a part did not come to its end, whatever the report has of it
if [[ $compared -ne 3 ]]; then
  if $rehearse; then
    python3 "$here/speed.py" "$programs" fake:0 "$scratch/speed.json" --rehearse || broken=1
    python3 "$here/scenarios.py" "$programs" cpu "$scratch/scenarios.json" lost_stage || broken=1
  else
    for each in "2" "2 --fast" "1" "2 --lose"; do
      # shellcheck disable=SC2086
      timeout 120 "$programs/card_nccl" cuda:0 $each | tee -a "$scratch/nccl.jsonl" || broken=1
    done
    found+=(--nccl "$scratch/nccl.jsonl")
    python3 "$here/speed.py" "$programs" cuda:0 "$scratch/speed.json" || broken=1
    python3 "$here/scenarios.py" "$programs" cuda:0 "$scratch/scenarios.json" || broken=1
  fi
  found+=(--speed "$scratch/speed.json" --scenarios "$scratch/scenarios.json")
fi

how=()
! $rehearse || how=(--rehearsal)
code=0
report make "$out" --devices "$scratch/devices.json" --compared "$scratch/compared.json" \
  --compared-exit "$compared" --tests $passed "${found[@]}" "${how[@]}" || code=$?
[[ $code -ne 0 ]] || code=$broken
$rehearse || exit $code

# What a user does next, with a copy of the page; the page itself takes no rehearsal.
[[ $code -eq 0 ]] || exit $code
cp docs/gpu.md "$scratch/gpu.md"
report write-docs "$out" --page "$scratch/gpu.md" --rehearsal
if report write-docs "$out" --page "$scratch/gpu.md" 2>/dev/null; then
  echo "run.sh: a rehearsal was written into the page" >&2 && exit 1
fi
for each in "the device of tests (a rehearsal)" "| optimizer adamw |" "| pipeline of 1 |" \
  "| small, batch 8 | 2 stages |" "| small, batch 8 | 1 stage, A=b |" "| lost stage | passed |"; do
  grep -qF "$each" "$scratch/gpu.md" || { echo "run.sh: the page lacks '$each'" >&2 && exit 1; }
done
echo "rehearsed"
