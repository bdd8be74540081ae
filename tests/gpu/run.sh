#!/usr/bin/env bash
# What is to be seen on a machine with a GPU: ./tests/gpu/run.sh [--rehearse] [--build DIR] [FILE.json]
# Looks at the machine, runs the tests that concern GPUs and NCCL, compares what GPU 0 computes
# with float64 on the CPU (every layer, loss and optimizer) and trains with one to four stages on it,
# and writes what was found into one JSON (build/gpu.json), from which
# `tests/gpu/report.py write-docs FILE.json` writes docs/gpu.md. Exits with 1 where a test or a
# comparison fails, and with 3 where no GPU can be used: the report says why.
# --rehearse needs no GPU, and takes seconds: what is built in DIR is used as it is, tests are looked
# up instead of run, the comparison is a short one on the device of tests, and what comes of it is
# checked and written into a copy of docs/gpu.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
rehearse=false
build=build/release
while [[ ${1:-} == --* ]]; do
  case $1 in
  --rehearse) rehearse=true ;;
  --build) build=$2 && shift ;;
  *) echo "run.sh: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done
out=${1:-build/gpu.json}
report() { python3 tests/gpu/report.py "$@"; }

tests=(unit_devices unit_fake_device unit_device_stage parity_devices parity_nccl
  conformance_collective unit_nccl unit_nccl_tensors nccl_processes devices_program)
if ! $rehearse; then
  cmake --preset release >/dev/null
  cmake --build $build --target troupe card_parity "${tests[@]}"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$build/bin/troupe" devices --json >"$scratch/devices.json"
"$build/bin/troupe" devices

passed=passed
if $rehearse; then
  for each in "${tests[@]}"; do
    found=$(ctest --test-dir "$build" -N -R "^$each:" | sed -n 's/^Total Tests: //p')
    [[ $found -gt 0 ]] || { echo "run.sh: there is no test of $each" >&2 && passed=failed; }
  done
else
  all=$(IFS='|' && echo "${tests[*]}")
  ctest --test-dir "$build" --output-on-failure -j1 -R "^($all):" || passed=failed
fi

# 3: no GPU can be used. Anything else that is not 0 is a failure.
compared=0
device=(cuda:0)
! $rehearse || device=(fake:0 --short)
timeout 900 "$build/bin/card_parity" "${device[@]}" >"$scratch/compared.json" || compared=$?
cat "$scratch/compared.json"

how=()
! $rehearse || how=(--rehearsal)
code=0
report make "$out" --devices "$scratch/devices.json" --compared "$scratch/compared.json" \
  --compared-exit "$compared" --tests $passed "${how[@]}" || code=$?
$rehearse || exit $code

# What a user does next, with a copy of the page; the page itself takes no rehearsal.
[[ $code -eq 0 ]] || exit $code
cp docs/gpu.md "$scratch/gpu.md"
report write-docs "$out" --page "$scratch/gpu.md" --rehearsal
if report write-docs "$out" --page "$scratch/gpu.md" 2>/dev/null; then
  echo "run.sh: a rehearsal was written into the page" >&2 && exit 1
fi
for each in "the device of tests (a rehearsal)" "| optimizer adamw |" "| pipeline of 1 |"; do
  grep -qF "$each" "$scratch/gpu.md" || { echo "run.sh: the page lacks '$each'" >&2 && exit 1; }
done
echo "rehearsed"
