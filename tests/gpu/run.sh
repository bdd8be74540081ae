#!/usr/bin/env bash
# What is to be seen on a machine with a card: ./tests/gpu/run.sh [FILE.json]
# Looks at the machine, runs the tests that concern cards and NCCL, and writes what was found into
# one JSON (build/gpu.json). Exits with 1 where a test fails, and with 3 where no card can be used:
# the report says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/gpu.json}
build=build/release

cmake --preset release >/dev/null
cmake --build $build --target troupe unit_devices unit_nccl unit_nccl_tensors \
  nccl_processes devices_program

seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
$build/bin/troupe devices --json >"$seen"
$build/bin/troupe devices

passed=true
ctest --test-dir $build --output-on-failure -j1 \
  -R '^(unit_devices|unit_nccl|unit_nccl_tensors|nccl_processes|devices_program):' || passed=false

python3 - "$seen" "$out" "$passed" <<'PYTHON'
import datetime, json, os, sys
seen, out, passed = sys.argv[1:]
with open(seen, encoding="utf-8") as file:
    devices = json.load(file)
report = {
    "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    "devices": devices,
    "tests_passed": passed == "true",
    # docs/gpu.md says what each of them is.
    "not_measured": ["parity", "training speed", "memory", "nccl rates", "ucx with cuda memory"],
}
os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
with open(out, "w", encoding="utf-8") as file:
    json.dump(report, file, indent=2)
    file.write("\n")
usable = [card["name"] for card in devices["cuda"]["cards"] if card["usable"]]
print(f"{out}: {', '.join(usable) or 'no card can be used'}; tests "
      + ("passed" if report["tests_passed"] else "failed"))
sys.exit(1 if not report["tests_passed"] else 0 if usable else 3)
PYTHON
