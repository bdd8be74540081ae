"""Recovery: how long a run takes to go on after a loss, and what being ready for one costs a step.

./dev bench recovery [--json FILE] [--rounds R] [--write-docs] [--only NAME[,NAME..]]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Result

from figures import FIGURE_ROW, figure_row, kinds_main, say_figure

RUN_S = 240.0
KILLS = 5
STEPS_BETWEEN = 6
SMALL = ["--model", "resnet18", "--data", "synthetic:3x32x32:10:64", "--batch-size", "16",
         "--micro-batches", "4", "--optimizer", "sgd", "--momentum", "0.9", "--no-eval",
         "--threads-per-stage", "1"]
REAL = ["--model", "resnet50", "--data", "synthetic:3x128x128:10:120", "--batch-size", "120",
        "--micro-batches", "8", "--schedule", "zb-h2", "--stages", "2", "--no-eval",
        "--threads-per-stage", "1", "--memory-format", "channels_last"]
# The versions of the first steps lie in memory that is touched for the first time.
FIRST = 4
USUAL = 4
CHECKPOINT_EVERY = 10
FILES = 5
# A long run meets one fault in each of these; in the second half of it the run is undisturbed.
FAULT_EVERY_S = 29.0
LONG_S = 1800.0
LONG_STAGES = 3


def children_of(pid: int) -> dict[str, int]:
    """A run's node processes by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"--node-name" in words:
                found[words[words.index(b"--node-name") + 1].decode()] = int(child)
    return found


def holder_of(stage: str, log: str) -> str:
    """The node that has a stage's place after what a run has said."""
    for line in log.splitlines():
        words = line.split(" takes the place of ")
        if len(words) == 2 and words[1] in (stage, *(f"{stage}.{n}" for n in range(2, 10))):
            stage = words[0].split()[-1]
    return stage


def replays_in(log: str) -> int:
    """How often a run has said that a stage is replayed."""
    return log.count(" is replayed from step ")


def computed_again(log: str) -> int:
    """The actions that processes which were left have computed again, by a run's last word."""
    words = log.split("the processes that were left computed ")
    if len(words) != 2:
        raise harness.Failure("the run does not say what was computed again")
    return int(words[1].split()[0])


def lines_of(file: Path) -> int:
    """Steps that a run has told."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


class Run:
    """One training run, with its lines of JSON as they come."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.steps = folder / "steps.json"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [str(harness.require_program("resnet_pipeline")), *flags, "--json",
                 str(self.steps)], stdout=log, stderr=log)
        self.began = time.monotonic()

    def wait_for(self, lines: int) -> float:
        """When so many steps were told."""
        while lines_of(self.steps) < lines:
            if self.child.poll() is not None or time.monotonic() - self.began > RUN_S:
                self.fail()
            time.sleep(0.001)
        return time.monotonic()

    def wait_for_replay(self, number: int) -> float:
        """When the run said that a stage was replayed, or that all go back, so many times."""
        while True:
            log = self.log.read_text(errors="replace")
            if replays_in(log) + log.count("the run goes on behind step") >= number:
                return time.monotonic()
            if self.child.poll() is not None or time.monotonic() - self.began > RUN_S:
                self.fail()
            time.sleep(0.001)

    def fail(self) -> None:
        """Says what the run said last."""
        self.child.kill()
        self.child.wait()
        raise harness.Failure(harness.tail(self.log.read_text(errors="replace")))

    def end(self) -> list[float]:
        """Seconds of each step."""
        if self.child.wait(RUN_S):
            self.fail()
        return [line["seconds"] for line in harness.json_lines(self.steps.read_text())
                if "seconds" in line]


def measure_kills(stages: int, understudies: int = 0) -> Callable[[Path], None]:
    """From the kill of a stage to its replay, whose stage has all that its first action needs by
    then, and to the end of the first step that was not told before."""
    def measure(folder: Path) -> None:
        steps = (KILLS + 2) * STEPS_BETWEEN
        run = Run(folder, [*SMALL, "--stages", str(stages), "--steps", str(steps), "--on-fault",
                           "recover", "--understudies", str(understudies)])
        gaps, replays = [], []
        for number in range(KILLS):
            told = (number + 1) * STEPS_BETWEEN
            run.wait_for(told)
            name = holder_of(f"stage-{number % stages}", run.log.read_text(errors="replace"))
            pids = [pid for at, pid in children_of(run.child.pid).items()
                    if at == name or at.startswith(name + ".")]
            before = lines_of(run.steps)
            os.kill(max(pids), signal.SIGKILL)
            killed = time.monotonic()
            replays.append(run.wait_for_replay(number + 1) - killed)
            gaps.append(run.wait_for(before + 1) - killed)
        seconds = run.end()
        usual = statistics.median(seconds)
        log = run.log.read_text(errors="replace")
        say_figure("kill_to_replay_p50", statistics.median(replays), "s")
        say_figure("kill_to_replay_max", max(replays), "s")
        say_figure("replayed", replays_in(log), "losses")
        say_figure("survivors_computed_again", computed_again(log), "actions")
        say_figure("kill_to_next_step_p50", statistics.median(gaps), "s")
        say_figure("kill_to_next_step_max", max(gaps), "s")
        say_figure("usual_step", usual, "s")
    return measure


def costs_of(run: Run) -> dict[str, list[float]]:
    """Seconds of steps behind the first one, by the clock and of all CPUs: of each of the usual
    ones, and of those before."""
    cpu = []
    for told in (1, FIRST, FIRST + USUAL):
        run.wait_for(told)
        cpu.append(sum(each.cpu_s for each in harness.process_tree(run.child.pid)))
    seconds = run.end()
    return {"first_step": seconds[1:FIRST], "step": seconds[FIRST:FIRST + USUAL],
            "first_cpu": [(cpu[1] - cpu[0]) / (FIRST - 1)], "cpu": [(cpu[2] - cpu[1]) / USUAL]}


def in_turns(folder: Path, kinds: dict[str, list[str]],
             measure: Callable[[Run], dict[str, list[float]]],
             rounds: int) -> dict[str, dict[str, list[float]]]:
    """What runs with each kind's flags cost, first in this order and then in the other one."""
    costs: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for number in range(rounds):
        for kind in list(kinds) if number % 2 == 0 else reversed(kinds):
            place = folder / f"{kind}-{number}"
            place.mkdir()
            flags = [each.replace("{place}", str(place)) for each in kinds[kind]]
            for what, values in measure(Run(place, flags)).items():
                costs[kind].setdefault(what, []).extend(values)
    return costs


def say_price(what: str, unit: str, costs: dict[str, dict[str, list[float]]]) -> None:
    """The medians of two kinds, and what the second one costs more."""
    (one, without), (other, with_it) = ((kind, statistics.median(each[what]))
                                        for kind, each in costs.items())
    say_figure(f"{what}_{one}", without, unit)
    say_figure(f"{what}_{other}", with_it, unit)
    say_figure(f"price_of_{what}", 100 * (with_it / without - 1), "%")


def measure_price(*link: str) -> Callable[[Path], None]:
    """The same run with and without versions being kept."""
    def measure(folder: Path) -> None:
        # One step more: a run that ends takes its CPU seconds along.
        flags = [*REAL, *link, "--steps", str(FIRST + USUAL + 1), "--on-fault"]
        costs = in_turns(folder, {"stop": [*flags, "stop"], "recover": [*flags, "recover"]},
                         costs_of, 4)
        for what, unit in (("step", "s"), ("cpu", "CPU s"), ("first_step", "s"),
                           ("first_cpu", "CPU s")):
            say_price(what, unit, costs)
    return measure


def measure_checkpoints(folder: Path) -> None:
    """Ten steps while one checkpoint is written, and without it."""
    half = CHECKPOINT_EVERY // 2
    last = CHECKPOINT_EVERY + half

    def ten_steps(run: Run) -> dict[str, list[float]]:
        return {"ten_steps": [sum(run.end()[half:last])]}

    flags = [*REAL, "--steps", str(last)]
    kept = ["--checkpoint-dir", "{place}/kept", "--checkpoint-every", str(CHECKPOINT_EVERY)]
    say_price("ten_steps", "s", in_turns(folder, {"none": flags, "one": [*flags, *kept]},
                                         ten_steps, 3))


def measure_files(folder: Path) -> None:
    """A checkpoint that is written while nothing else is done, and as many bytes by dd."""
    rates: dict[str, list[float]] = {"checkpoint": [], "dd": []}
    for number in range(FILES):
        place = folder / str(number)
        place.mkdir()
        run = Run(place, ["--model", "resnet50", "--data", "synthetic:3x32x32:10:8",
                          "--batch-size", "8", "--momentum", "0.9", "--no-eval", "--steps", "1",
                          "--stages", "2", "--threads-per-stage", "1", "--verbose",
                          "--checkpoint-dir", str(place / "kept"), "--checkpoint-every", "1"])
        run.end()
        said = re.search(r"checkpoint \S+ in (\d+) ms", run.log.read_text(errors="replace"))
        if said is None:
            raise harness.Failure("the run does not say how long its checkpoint took")
        size = sum(each.stat().st_size for each in (place / "kept").rglob("*") if each.is_file())
        rates["checkpoint"].append(size / 1e3 / int(said[1]))
        began = time.monotonic()
        subprocess.run(["dd", "if=/dev/zero", f"of={place / 'dd'}", "bs=1M", f"count={size >> 20}",
                        "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
        rates["dd"].append((size >> 20 << 20) / 1e6 / (time.monotonic() - began))
        shutil.rmtree(place)
    checkpoint, dd = (statistics.median(rates[kind]) for kind in ("checkpoint", "dd"))
    say_figure("bytes", size / 1e6, "MB")
    say_figure("checkpoint", checkpoint, "MB/s")
    say_figure("dd_fsync", dd, "MB/s")
    say_figure("of_dd", 100 * checkpoint / dd, "%")


def newest(run: Run, stage: int) -> int:
    """The process that has a stage's place, without understudies."""
    name = f"stage-{stage}"
    return max(pid for at, pid in children_of(run.child.pid).items()
               if at == name or at.startswith(name + "."))


def kill(run: Run, stage: int) -> None:
    os.kill(newest(run, stage), signal.SIGKILL)


def stop(run: Run, stage: int) -> None:
    os.kill(newest(run, stage), signal.SIGSTOP)


def stop_and_continue(run: Run, stage: int) -> None:
    pid = newest(run, stage)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    with contextlib.suppress(ProcessLookupError):  # it has been replaced
        os.kill(pid, signal.SIGCONT)


def kill_neighbours(run: Run, stage: int) -> None:
    for each in (newest(run, stage), newest(run, (stage + 1) % LONG_STAGES)):
        os.kill(each, signal.SIGKILL)


def measure_faults(*faults: Callable[[Run, int], None]) -> Callable[[Path], None]:
    """What a run of half an hour keeps of its throughput with a fault every 29 s."""
    def measure(folder: Path) -> None:
        run = Run(folder, [*SMALL, "--stages", str(LONG_STAGES), "--steps", "1000000",
                           "--on-fault", "recover", "--checkpoint-dir", str(folder / "kept"),
                           "--checkpoint-every", "50"])
        run.wait_for(20)
        first, began = lines_of(run.steps), time.monotonic()
        calm_steps, calm_s, count = 0, 0.0, int(LONG_S / FAULT_EVERY_S)
        for number in range(count):
            until = began + FAULT_EVERY_S * (number + 1)
            faults[number % len(faults)](run, number % LONG_STAGES)
            time.sleep(max(0.0, until - FAULT_EVERY_S / 2 - time.monotonic()))
            steps, at = lines_of(run.steps), time.monotonic()
            time.sleep(max(0.0, until - time.monotonic()))
            calm_steps += lines_of(run.steps) - steps
            calm_s += time.monotonic() - at
            if run.child.poll() is not None:
                run.fail()
        rate = (lines_of(run.steps) - first) / (time.monotonic() - began)
        run.child.send_signal(signal.SIGINT)
        run.child.wait(RUN_S)
        log = run.log.read_text(errors="replace")
        say_figure("faults", count, "faults")
        say_figure("replayed", replays_in(log), "replays")
        say_figure("went_back", log.count("the run goes on behind step"), "returns")
        say_figure("steps_a_second_calm", calm_steps / calm_s, "1/s")
        say_figure("steps_a_second", rate, "1/s")
        say_figure("kept", 100 * rate * calm_s / calm_steps, "%")
    return measure


KINDS: dict[str, Callable[[Path], None]] = {
    "kill.two_stages": measure_kills(2), "kill.one_stage": measure_kills(1),
    "kill.understudy": measure_kills(2, understudies=1),
    "price.resnet50": measure_price(), "price.resnet50_tcp": measure_price("--link", "tcp"),
    "checkpoints.price": measure_checkpoints, "checkpoints.files": measure_files,
    "faults.kills": measure_faults(kill),
    "faults.mixed": measure_faults(kill, stop, stop_and_continue, kill_neighbours)}


def rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a figure."""
    return FIGURE_ROW, [figure_row(result, figure) for result in results
                        for figure in result.figures()]


def main() -> int:
    return kinds_main(__file__, __doc__, KINDS, 1, LONG_S + RUN_S, rows, lambda _: "")


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
