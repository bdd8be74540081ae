#!/usr/bin/env bash
# What is to be seen on a machine with a GPU: ./tests/gpu/run.sh [FILE.json]
# Looks at the machine, runs the tests that concern GPUs and NCCL, compares what GPU 0 computes
# with float64 on the CPU (every layer, loss and optimizer) and trains with one to four stages on it,
# and writes what was found into one JSON (build/gpu.json). Exits with 1 where a test or a comparison
# fails, and with 3 where no GPU can be used: the report says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/gpu.json}
build=build/release

cmake --preset release >/dev/null
cmake --build $build --target troupe unit_devices unit_fake_device unit_device_stage \
  parity_devices parity_nccl conformance_collective unit_nccl unit_nccl_tensors nccl_processes \
  devices_program card_parity

seen=$(mktemp)
compared=$(mktemp)
trap 'rm -f "$seen" "$compared"' EXIT
$build/bin/troupe devices --json >"$seen"
$build/bin/troupe devices

passed=true
ctest --test-dir $build --output-on-failure -j1 \
  -R '^(unit_devices|unit_fake_device|unit_device_stage|parity_devices|parity_nccl|conformance_collective|unit_nccl|unit_nccl_tensors|nccl_processes|devices_program):' ||
  passed=false

# 3: no GPU can be used. Anything else that is not 0 is a failure.
parity=0
timeout 900 $build/bin/card_parity cuda:0 >"$compared" || parity=$?
cat "$compared"

python3 - "$seen" "$out" "$passed" "$compared" "$parity" <<'PYTHON'
import datetime, json, os, sys
seen, out, passed, compared, parity = sys.argv[1:]
with open(seen, encoding="utf-8") as file:
    devices = json.load(file)
with open(compared, encoding="utf-8") as file:
    text = file.read()
report = {
    "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    "devices": devices,
    "tests_passed": passed == "true",
    # Largest differences as shares of a tensor's largest entry; null: no GPU can be used.
    "parity": json.loads(text) if text else None,
    "parity_exit": int(parity),
    # docs/gpu.md says what each of them is.
    "not_measured": ["training speed", "memory", "nccl rates", "ucx with cuda memory"],
}
os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
with open(out, "w", encoding="utf-8") as file:
    json.dump(report, file, indent=2)
    file.write("\n")
usable = [gpu["name"] for gpu in devices["cuda"]["gpus"] if gpu["usable"]]
print(f"{out}: {', '.join(usable) or 'no GPU can be used'}; tests "
      + ("passed" if report["tests_passed"] else "failed"))
failed = not report["tests_passed"] or int(parity) not in (0, 3)
sys.exit(1 if failed else 0 if usable else 3)
PYTHON
