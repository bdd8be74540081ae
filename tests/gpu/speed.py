"""Steps of Troupe's stages on one GPU beside PyTorch's in eager mode, one run after the other.

speed.py BIN DEVICE OUT.json [--rehearse]

BIN has card_speed. With --rehearse, two small runs on the device of tests, and none of PyTorch's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EAGER = Path(__file__).with_name("eager.py")
PATIENCE_S = 120

TROUPE = {
    "resnet50": {
        "1 stage": [],
        "1 stage, any order of additions": ["--any-order"],
        "1 stage, 4 micro-batches": ["--micro-batches", "4"],
        "2 stages, 2 micro-batches": ["--stages", "2", "--micro-batches", "2"],
        "2 stages, 4 micro-batches": ["--stages", "2", "--micro-batches", "4"],
        "2 stages, 4 micro-batches, 1f1b": ["--stages", "2", "--micro-batches", "4",
                                            "--schedule", "1f1b"],
    },
    "gpt": {
        "1 stage": [],
        "1 stage, any order of additions": ["--any-order"],
        "2 stages, 4 micro-batches": ["--stages", "2", "--micro-batches", "4"],
    },
}
PYTORCH = {
    "PyTorch, eager": [],
    "PyTorch, eager, loss read each step": ["--read-loss"],
    "PyTorch, eager, deterministic, loss read": ["--read-loss", "--deterministic"],
    "PyTorch, eager, 4 micro-batches": ["--micro-batches", "4"],
}
BATCHES = {"resnet50": 256, "gpt": 16}


def run(command: list[str]) -> dict:
    """One program's JSON."""
    done = subprocess.run(command, timeout=PATIENCE_S, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command)}: code {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def rows_of(programs: Path, device: str, model: str) -> Iterator[dict]:
    """Each way, one after the other."""
    batch = ["--batch", str(BATCHES[model])]
    ways = {name: [str(programs / "card_speed"), device, model, *batch, *flags]
            for name, flags in TROUPE[model].items()}
    ways |= {name: [sys.executable, str(EAGER), model, *batch, *flags]
             for name, flags in PYTORCH.items()}
    for name, command in ways.items():
        yield row_of(name, run(command))


def row_of(name: str, seen: dict) -> dict:
    """What the report has of a run."""
    return {"model": seen["model"], "what": name, "batch": seen["batch"],
            "seconds": statistics.median(seen["seconds"]), "least": min(seen["seconds"]),
            "peak_bytes": seen.get("peak_bytes", 0)}


def main() -> int:
    """As the module's text says."""
    programs, device, out = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3])
    speed = str(programs / "card_speed")
    rows: list[dict] = []
    growth = None

    def note(row: dict | None) -> None:
        if row is not None:
            rows.append(row)
            print(f"{row['model']}, {row['what']}: {1000 * row['seconds']:.2f} ms, "
                  f"{row['peak_bytes'] / 2**30:.2f} GiB", flush=True)
        out.write_text(json.dumps({"rows": rows, "growth": growth}, indent=2) + "\n")

    if "--rehearse" in sys.argv:
        small = [speed, device, "small", "--batch", "8", "--steps", "1", "--micro-batches", "2"]
        for stages in ("1", "2"):
            note(row_of(f"{stages} stages", run([*small, "--stages", stages])))
    else:
        for model in BATCHES:
            for row in rows_of(programs, device, model):
                note(row)
        many = run([speed, device, "resnet50", "--batch", "32", "--steps", "1000"])
        growth = {"steps": 1000, "reserved_growth": many["reserved_growth"]}
        note(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
