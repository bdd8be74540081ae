"""What a run costs while it waits: CPU seconds of 60 seconds, and what arithmetic beside it loses.

./dev bench idle [--json FILE] [--rounds R] [--write-docs] [--only NAME[,NAME..]]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
from harness import Result

from figures import figure_table, kinds_main, say_figure

IDLE_S = 60.0
BESIDE_S = 15.0
SETTLE_S = 5.0  # after the last process has joined: stages are built, and the first layer begins
JOIN_S = 60.0
RUN_S = 300.0
LIMIT_CPU_S = 1.0
STAGES = 2
# The whole run is one forward of the first layer: stage 0 sleeps in it, stage 1 waits for its input,
# and the trainer for both.
PACE = {"TROUPE_PACE_LAYERS": str(STAGES), "TROUPE_PACE_MS": str(int(1000 * RUN_S))}
FLAGS = ["--model", "paced", "--data", "synthetic:1x2x2:4:16", "--stages", str(STAGES),
         "--schedule", "gpipe", "--micro-batches", "1", "--batch-size", "1", "--steps", "1",
         "--no-eval", "--threads-per-stage", "1", "--no-progress", "--verbose"]
ARITHMETIC = """
import hashlib, sys, time
block, count, end = bytes(1 << 16), 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    hashlib.sha256(block).digest()
    count += 1
print(count)
"""


def arithmetic(seconds: float) -> float:
    """Blocks a second that a process on each core computes, all together."""
    command = [sys.executable, "-c", ARITHMETIC, str(seconds)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                 for _ in os.sched_getaffinity(0)]
    return sum(int(each.communicate()[0]) for each in processes) / seconds


@contextlib.contextmanager
def idle_run(*more: str) -> Iterator[subprocess.Popen]:
    """A run all of whose processes wait. None of them is left afterwards."""
    command = [harness.require_program("paced_pipeline"), *FLAGS, *more]
    with harness.session(command, env=os.environ | PACE, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         errors="replace") as run:
        with harness.killed_after(run, JOIN_S):
            harness.await_joined(run, STAGES)
        # Drains the pipe, so that the run never waits for room in it.
        threading.Thread(target=lambda: [None for _ in run.stderr], daemon=True).start()
        time.sleep(SETTLE_S)
        yield run


def measure(*more: str) -> Callable[[Path], None]:
    """What measures a run of two stages with these flags."""
    def of(_: Path) -> None:
        alone = arithmetic(BESIDE_S)
        with idle_run(*more) as run:
            processes = [each for each in harness.process_tree(run.pid) if not each.ended]
            cpu_s = harness.cpu_seconds_over(run.pid, IDLE_S)
            beside = arithmetic(BESIDE_S)
            if run.poll() is not None:
                raise harness.Failure(f"the run has ended, with code {run.returncode}")
        alone = (alone + arithmetic(BESIDE_S)) / 2
        say_figure("processes", len(processes), "processes")
        say_figure("cpu_of_60_s", cpu_s, "s")
        say_figure("arithmetic_beside", 100 * beside / alone, "%")
    return of


KINDS: dict[str, Callable[[Path], None]] = {
    "shm": measure("--link", "shm"), "tcp": measure("--link", "tcp")}


def remark(results: list[Result]) -> str:
    """A sentence about the limit."""
    costs = [cost for result in results if (cost := result.median("cpu_of_60_s")) is not None]
    if not costs:
        return "Nothing was measured."
    kept = "within" if max(costs) <= LIMIT_CPU_S else "OVER"
    return (f"A run of two stage processes and their trainer takes at most {max(costs):.2f} CPU "
            f"seconds of 60 in which it waits: {kept} the limit of {LIMIT_CPU_S:g}.")


def main() -> int:
    return kinds_main(__file__, __doc__, KINDS, 1, RUN_S, figure_table, remark)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
