"""Campaigns of the benchmark `cluster`: many joins, launches of which something is killed, peaks of
memory beside what `check` predicts, and how soon mistakes are refused. Each is measured once.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import harness
from figures import say_figure

JOINS = 200
JOINED = 64
LAUNCHES = 300
SEED = 7000
CAMPAIGN_S = 5400.0
JOIN_S = 120.0
# As many layers as processes; what they compute is nothing beside a start.
DEEP = ["--layers", str(JOINED), "--width", "16", "--heads", "2", "--context", "16", "--untied",
        "--stages", str(JOINED), "--micro-batches", "4", "--batch-size", "4", "--steps", "1",
        "--no-eval", "--threads-per-stage", "1", "--verbose"]
STAGES = 4
DECODER = ["--stages", str(STAGES), "--steps", "4", "--context", "16", "--heads", "1",
           "--batch-size", "2", "--micro-batches", "2", "--optimizer", "adamw", "--sample-bytes",
           "2", "--no-eval"]
MIB = 1 << 20


def join_once(folder: Path) -> float | None:
    """Seconds from the start of a run until all of its processes have joined; None: it failed."""
    began = time.monotonic()
    joined = None
    with (folder / "out").open("wb") as out, subprocess.Popen(
            [harness.require_program("transformer_pipeline"), *DEEP], stdout=out,
            stderr=subprocess.PIPE, text=True, errors="replace") as run, \
            harness.killed_after(run, JOIN_S):
        with contextlib.suppress(harness.Failure):
            harness.await_joined(run, JOINED)
            joined = time.monotonic() - began
        for _ in run.stderr:  # nobody may wait for room in the pipe
            pass
        return joined if run.wait() == 0 else None


def measure_joins(folder: Path) -> None:
    """A run of many processes, again and again."""
    times = [join_once(folder) for _ in range(JOINS)]
    whole = sorted(each for each in times if each is not None)
    say_figure("launches", len(times), "runs")
    say_figure("failed", len(times) - len(whole), "runs")
    if whole:
        say_figure("join_p50", statistics.median(whole), "s")
        say_figure("join_p99", whole[math.ceil(0.99 * len(whole)) - 1], "s")


def run_test(program: str, words: list[str], more: dict[str, str]) -> str:
    """What a test program says that passes."""
    done = subprocess.run([harness.require_program(program), *words], capture_output=True,
                          text=True, timeout=CAMPAIGN_S, check=False, env=os.environ | more)
    if done.returncode:
        raise harness.Failure(harness.tail(done.stdout + done.stderr))
    return " ".join(done.stdout.split())


def measure_killed(_: Path) -> None:
    """Launches over two hosts of which something is killed; a process that is left is a failure."""
    said = run_test("chaos_launches", [],
                    {"TROUPE_LAUNCHES": str(LAUNCHES), "TROUPE_SEED": str(SEED)})
    found = re.search(r"(\d+) launches of (\d+) ms to their first step; ended:((?: [a-z]+ \d+)+)",
                      said)
    if not found:
        raise harness.Failure(said)
    say_figure("launches", int(found.group(1)), "launches")
    say_figure("first_step", int(found.group(2)) / 1000, "s")
    for who, times in re.findall(r"([a-z]+) (\d+)", found.group(3)):
        say_figure(f"ended.{who}", int(times), "launches")


def measure_mistakes(folder: Path) -> None:
    """From a launch, or doctor, to its end, for each of the mistakes that the tests make."""
    times = folder / "times"
    run_test("hosts", ["Each of the classic mistakes*"], {"TROUPE_MISTAKE_TIMES": str(times)})
    said = (line.split(" ", 1) for line in times.read_text().splitlines())
    found = {name: float(seconds) for seconds, name in said}  # the last attempt at each
    say_figure("mistakes", len(found), "mistakes")
    say_figure("slowest", max(found.values()), "s")
    for name, seconds in found.items():
        say_figure(name, seconds, "s")


def decoder(folder: Path, model: list[str]) -> list[str]:
    """A run of it."""
    text = folder / "text"
    text.write_text("Whatever is not its own is dropped at once. " * 400)
    return [harness.require_program("transformer_pipeline"), *DECODER, "--data", f"text:{text}",
            *model]


def peaks_of(command: list[str], folder: Path) -> dict[str, int]:
    """The most memory that each process of a run had, in bytes, by its name."""
    peaks: dict[str, int] = {}
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log)
        while run.poll() is None:
            for process in harness.process_tree(run.pid):
                name = "trainer" if process.pid == run.pid else harness.node_name(process.pid)
                if name:
                    peaks[name] = max(peaks.get(name, 0), harness.peak_rss_bytes(process.pid))
            time.sleep(0.005)
    if run.returncode:
        raise harness.Failure(harness.tail((folder / "log").read_text(errors="replace")))
    return peaks


def predicted_by_check(command: list[str]) -> dict[str, float]:
    """What each process takes beside the program itself, in bytes."""
    done = subprocess.run([command[0], "--check", *command[1:]], capture_output=True, text=True,
                          timeout=JOIN_S, check=False)
    rows = re.findall(r"^(\d+|trainer) .* ([\d.]+) MiB *$", done.stdout, re.MULTILINE)
    if done.returncode or len(rows) != STAGES + 1:
        raise harness.Failure(done.stderr or done.stdout)
    return {name if name == "trainer" else f"stage-{name}": float(size) * MIB
            for name, size in rows}


def measure_memory(folder: Path) -> None:
    """A decoder with some 400 MB of weights. `predicted` is what `check` says, and what the same
    process takes in a run of nearly no model."""
    empty = peaks_of(decoder(folder, ["--layers", "4", "--width", "8"]), folder)
    heavy = decoder(folder, ["--layers", "8", "--width", "1024"])
    predicted = predicted_by_check(heavy)
    peaks = peaks_of(heavy, folder)
    for name, bytes_of_run in predicted.items():
        if name not in peaks or name not in empty:
            raise harness.Failure(f"{name} was never seen")
        say_figure(f"{name}.peak", peaks[name] / MIB, "MiB")
        say_figure(f"{name}.predicted", (empty[name] + bytes_of_run) / MIB, "MiB")


CAMPAIGNS: dict[str, Callable[[Path], None]] = {
    "join.64_processes": measure_joins, "killed.300_launches": measure_killed,
    "memory.decoder": measure_memory, "refused": measure_mistakes}
