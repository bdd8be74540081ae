"""Steps of Troupe's stages on one GPU beside PyTorch's in eager mode, in turns, and the trainer's; and
how long the host takes for a product of matrices.

speed.py BIN DEVICE OUT.json [--rehearse | --only PART[,PART..]] [--rounds N]

BIN has card_speed and resnet_pipeline. With --rehearse, four small runs on the device of tests, and none of PyTorch's.
With --only, some of resnet50, gpt, trainer and host, beside which OUT.json keeps the parts that it has; with
--rounds N, each way N times instead of twice. `host` takes two minutes at most, and leaves out what it has no time for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

EAGER = Path(__file__).with_name("eager.py")
PATIENCE_S = 120
ROUNDS = 2

TROUPE = {
    "resnet50": {
        "1 stage": [],
        "1 stage, any order of additions": ["--any-order"],
        "1 stage, the batch from the host": ["--from-host"],
        "1 stage, 4 micro-batches": ["--micro-batches", "4"],
        "2 stages, 2 micro-batches": ["--stages", "2", "--micro-batches", "2"],
        "2 stages, 4 micro-batches": ["--stages", "2", "--micro-batches", "4"],
        "2 stages, 4 micro-batches, 1f1b": ["--stages", "2", "--micro-batches", "4",
                                            "--schedule", "1f1b"],
    },
    "gpt": {
        "1 stage": [],
        "1 stage, any order of additions": ["--any-order"],
        "2 stages, 2 micro-batches": ["--stages", "2", "--micro-batches", "2"],
        "2 stages, 4 micro-batches": ["--stages", "2", "--micro-batches", "4"],
    },
}
PYTORCH = {
    "PyTorch, eager": [],
    "PyTorch, eager, loss read each step": ["--read-loss"],
    "PyTorch, eager, deterministic, loss read": ["--read-loss", "--deterministic"],
    "PyTorch, eager, 4 micro-batches": ["--micro-batches", "4"],
}
PADDED = {"PyTorch, eager, loss read, 50,304 tokens": ["--read-loss", "--tokens", "50304"]}
BATCHES = {"resnet50": 256, "gpt": 16}
PARTS = [*BATCHES, "trainer", "host"]

# The trainer, whose batches come from the host's memory.
TRAINER = ["--model", "resnet50", "--data", "synthetic:3x224x224:1000:20000", "--batch-size", "256",
           "--precision", "bf16", "--memory-format", "channels_last", "--no-eval", "--no-progress"]
TRAINED = {
    "its stage in threads": ["--stages", "1", "--stages-in", "threads", "--micro-batches", "1"],
    "its stage in processes": ["--stages", "1", "--micro-batches", "1"],
    "its stage in threads, 4 micro-batches": ["--stages", "1", "--stages-in", "threads",
                                              "--micro-batches", "4"],
    "2 stages in processes, 2 micro-batches": ["--stages", "2", "--micro-batches", "2"],
    "2 stages in processes, 2 micro-batches, edges by UCX": [
        "--stages", "2", "--micro-batches", "2", "--edges", "ucx"],
}
STEPS = 40
SETTLED = 10  # steps

# What may change the host's time for a product of matrices: whose steps they are, with which flags,
# and what stands in the environment. What matters most comes first, what may not end well last.
HOST = [
    ("1 stage", [], ""),
    ("PyTorch, eager", ["--read-loss"], ""),
    ("1 stage", [], "CUBLAS_WORKSPACE_CONFIG=:4096:8"),
    ("PyTorch, eager", ["--read-loss"], "CUBLAS_WORKSPACE_CONFIG=:4096:8"),
    ("1 stage, any order of additions", ["--any-order"], ""),
    ("2 stages, 2 micro-batches", ["--stages", "2", "--micro-batches", "2"], ""),
    ("1 stage", [], "CUBLASLT_HEURISTICS_CACHE_CAPACITY=65536"),
    ("1 stage", [], "CUBLASLT_WORKSPACE_SIZE=32768"),
    ("1 stage", [], "MALLOC_CONF=dirty_decay_ms:10000,muzzy_decay_ms:10000"),
    ("1 stage", [], "UCX_MEM_EVENTS=n"),
    ("1 stage", [], "LD_PRELOAD=libstdc++.so.6:libc.so.6"),  # without jemalloc
    ("1 stage", [], "CUDA_MODULE_LOADING=EAGER"),
]
HOST_S = 120
PRODUCTS = ("addmm", "mm")


def run(command: list[str], environment: str = "", patience_s: float = PATIENCE_S) -> dict:
    """One program's JSON. `environment`: NAME=VALUE, or nothing."""
    more = dict([environment.split("=", 1)]) if environment else {}
    done = subprocess.run(command, timeout=patience_s, text=True, check=False,
                          env={**os.environ, **more},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command)}: code {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def rows_of(programs: Path, device: str, model: str, rounds: int) -> Iterator[dict]:
    """Each way, in turns with the others: a GPU's clock is not the same all the time."""
    batch = ["--batch", str(BATCHES[model])]
    ways = {name: [str(programs / "card_speed"), device, model, *batch, *flags]
            for name, flags in TROUPE[model].items()}
    ways |= {name: [sys.executable, str(EAGER), model, *batch, *flags]
             for name, flags in {**PYTORCH, **(PADDED if model == "gpt" else {})}.items()}
    seen = [{name: run(command) for name, command in ways.items()} for _ in range(rounds)]
    for name in ways:
        seconds = [each for one in seen for each in one[name]["seconds"]]
        yield row_of(name, {**seen[0][name], "seconds": seconds})


def trainer_row(programs: Path, device: str, name: str, flags: list[str]) -> dict:
    """Its steps, without the first ones, and what its stages had of the GPU together."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.json"
        done = subprocess.run([str(programs / "resnet_pipeline"), "--device", device, *TRAINER,
                               *flags, "--steps", str(STEPS), "--json", str(log)], timeout=PATIENCE_S,
                              check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(f"the trainer: code {done.returncode}: {done.stderr[-400:]}")
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "step" in line]
    return row_of(f"the trainer, {name}",
                  {"model": "resnet50", "batch": 256,
                   "seconds": [step["seconds"] for step in steps[SETTLED:]],
                   "peak_bytes": sum(each["peak_device_bytes"] for each in steps[-1]["stages"])})


def predicted_bytes(programs: Path, device: str, flags: list[str]) -> int:
    """What `--check` predicts of all stages: of their GPU's memory, or on the CPU of processes'."""
    done = subprocess.run([str(programs / "resnet_pipeline"), "--check", "--device", device, *flags],
                          timeout=PATIENCE_S, check=False, capture_output=True, text=True)
    rows = re.findall(r"^[0-9]+ .*?([0-9]+) MiB$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not rows:
        raise ValueError(f"--check: code {done.returncode}: {done.stdout[-400:]}"
                         f"{done.stderr[-400:]}")
    return sum(map(int, rows)) * 2**20


def row_of(name: str, seen: dict) -> dict:
    """What the report has of a run."""
    return {"model": seen["model"], "what": name, "batch": seen["batch"],
            "seconds": statistics.median(seen["seconds"]), "least": min(seen["seconds"]),
            "peak_bytes": seen.get("peak_bytes", 0),
            "predicted_bytes": seen.get("predicted_bytes", 0)}


def trainer_rows(programs: Path, device: str) -> Iterator[dict]:
    """The trainer's steps, each beside the memory that its check predicts."""
    for name, flags in TRAINED.items():
        yield {**trainer_row(programs, device, name, flags),
               "predicted_bytes": predicted_bytes(programs, device, [*TRAINER, *flags])}


def rehearsed_rows(programs: Path, device: str) -> Iterator[dict]:
    """Steps of one stage and of two, on the device of tests."""
    small = [str(programs / "card_speed"), device, "small", "--batch", "8", "--steps", "1",
             "--micro-batches", "2"]
    trainer = ["--model", "resnet18", "--data", "synthetic:3x32x32:10:8", "--batch-size", "8",
               "--stages", "1"]
    predicted = predicted_bytes(programs, "cpu", trainer)
    for stages in ("1", "2"):
        seen = run([*small, "--stages", stages])
        yield row_of(f"{stages} stages", {**seen, "predicted_bytes": predicted})


def outermost(events: Iterable[dict]) -> dict[int, list[tuple[float, float]]]:
    """By thread and in order, when each event began and how long it took, without those that lie in
    another one."""
    found: dict[int, list[tuple[float, float]]] = {}
    for each in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        own = found.setdefault(each["tid"], [])
        if not own or each["ts"] + each["dur"] > sum(own[-1]):
            own.append((each["ts"], each["dur"]))
    return found


def host_times(trace: dict) -> dict[str, dict]:
    """Of each kind of product in a trace: how many there are, and the host's time for one without
    that in CUDA's functions, in us. An operator within another of its name, as autocast has it, is
    not counted."""
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    calls = outermost(each for each in events if each.get("cat") in ("cuda_runtime", "cuda_driver"))
    found = {}
    for name in PRODUCTS:
        own: list[float] = []
        for thread, products in outermost(one for one in events
                                          if one["name"] == f"aten::{name}").items():
            inside = calls.get(thread, [])
            for begin, took in products:
                within = inside[bisect_left(inside, (begin, 0)):bisect_left(inside, (begin + took, 0))]
                own.append(took - sum(each for _, each in within))
        if not own:
            raise ValueError(f"the trace has no aten::{name}")
        found[name] = {"calls": len(own), "median_us": statistics.median(own), "least_us": min(own)}
    return found


def host_rows(programs: Path, device: str, model: str, batch: int,
              ways: list[tuple[str, list[str], str]]) -> Iterator[dict]:
    """Each way's steps, the first of which is traced."""
    until = time.monotonic() + HOST_S
    for name, flags, environment in ways:
        what = f"{name}, {environment}" if environment else name
        program = [sys.executable, str(EAGER)] if name.startswith("PyTorch") else [
            str(programs / "card_speed"), device]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            try:
                seen = run([*program, model, "--batch", str(batch), "--steps", "6", *flags, "--trace",
                            str(file)], environment, max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"{what}: no time is left", flush=True)
                continue
            products = host_times(json.loads(file.read_text(encoding="utf-8")))
        yield {**row_of(what, {**seen, "seconds": seen["seconds"][1:]}), "products": products}


def growth_of(programs: Path, device: str) -> dict:
    """What 1,000 steps have more of the GPU's memory than their beginning."""
    many = run([str(programs / "card_speed"), device, "resnet50", "--batch", "32", "--steps", "1000"])
    return {"steps": 1000, "reserved_growth": many["reserved_growth"]}


def arguments() -> argparse.Namespace:
    """The command line, as the module's text says."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("device")
    parser.add_argument("out", type=Path)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--rehearse", action="store_true")
    how.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    found = parser.parse_args()
    unknown = set(found.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only takes {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")
    return found


def main() -> int:
    """As the module's text says."""
    asked = arguments()
    programs, device, out = asked.programs.resolve(), asked.device, asked.out
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    found = {"rows": before.get("rows", []), "growth": before.get("growth"),
             "host": before.get("host", [])}

    def write() -> None:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

    def note(rows: Iterator[dict], into: str = "rows") -> None:
        for row in rows:
            found[into] = [one for one in found[into]
                           if (one["model"], one["what"]) != (row["model"], row["what"])] + [row]
            for name, product in row.get("products", {}).items():
                print(f"  {name}: {product['calls']} of {product['median_us']:.0f} us on the host, "
                      f"{product['least_us']:.0f} at least")
            print(f"{row['model']}, {row['what']}: {1000 * row['seconds']:.2f} ms, "
                  f"{row['peak_bytes'] / 2**30:.2f} GiB", flush=True)
            write()

    if asked.rehearse:
        note(rehearsed_rows(programs, device))
        note(host_rows(programs, device, "small", 8, [("1 stage", [], ""), ("1 stage", [], "A=b")]),
             "host")
        return 0
    for part in asked.only.split(","):
        if part == "trainer":
            note(trainer_rows(programs, device))
            found["growth"] = growth_of(programs, device)
            write()
        elif part == "host":
            note(host_rows(programs, device, "gpt", BATCHES["gpt"], HOST), "host")
        else:
            note(rows_of(programs, device, part, asked.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
