"""Recovery: how long a run takes to go on after a loss, and what being ready for one costs a step.

./dev bench recovery [--json FILE] [--rounds R] [--write-docs] [--only NAME[,NAME..]]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import math
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

from cluster import over_ssh, program
from figures import figure_table, kinds_main, say_figure
from hosts import Host, Hosts

RUN_S = 240.0
# Each as soon as the one before is over, and some steps are told.
LOSSES = 100
STEPS_BETWEEN = 2
CUTS = 10
TRAINERS = 30
FROM_MEMORY = "from versions that were kept in memory"
ENDLESS = "1000000"
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
# Of the undisturbed run whose losses the long one must have.
REFERENCE_S = 300.0
LEAST_COMMON = 50  # steps
LONG_STAGES = 3
ENDED_BY_SIGNAL = 128  # and the signal's number is the exit code


def children_of(pid: int) -> dict[str, int]:
    """A run's node processes by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a process that has ended meanwhile
            for child in (task / "children").read_text().split():
                if name := harness.node_name(int(child)):
                    found[name] = int(child)
    return found


def holder_of(stage: str, log: str) -> str:
    """The node that has a stage's place after what a run has said (--verbose)."""
    said = re.findall(rf"(\S+) has the place of {stage}$", log, re.MULTILINE)
    return said[-1] if said else stage


def replays_in(log: str) -> int:
    """How often a run has said that lost stages are replayed."""
    return log.count(" replayed from step ")


def computed_again(log: str) -> int:
    """The actions that processes have computed which had begun them before, by a run's last
    word."""
    words = log.split("processes that had begun them before computed ")
    if len(words) != 2:
        raise harness.Failure("the run does not say what was computed again")
    return int(words[1].split()[0])


def lines_of(file: Path) -> int:
    """Steps that a run has told."""
    return file.read_bytes().count(b'{"step":') if file.exists() else 0


class Run:
    """One training run, with its lines of JSON as they come."""

    def __init__(self, folder: Path, flags: list[str], command: list[str] | None = None) -> None:
        """`command`: what runs the program with these flags; empty: the program itself."""
        self.steps = folder / "steps.json"
        self.log = folder / "log"
        self.read, self.goes_on = 0, 0  # bytes of the log, and what these say
        begin = command or [str(harness.require_program("resnet_pipeline"))]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen([*begin, *flags, "--json", str(self.steps)], stdout=log,
                                          stderr=log)

    def said(self) -> str:
        """All that the run has said."""
        return self.log.read_text(errors="replace")

    def wait_until(self, is_met: Callable[[], bool], every_s: float = 0.001) -> float:
        """When a condition was met. Fails where the run ends first, or after RUN_S."""
        until = time.monotonic() + RUN_S
        while not is_met():
            if self.child.poll() is not None or time.monotonic() > until:
                self.fail()
            time.sleep(every_s)
        return time.monotonic()

    def wait_for(self, lines: int) -> float:
        """When so many steps were told."""
        return self.wait_until(lambda: lines_of(self.steps) >= lines)

    def wait_for_replay(self, number: int) -> float:
        """When the run said that a stage was replayed, or that all go back, so many times."""
        def is_said() -> bool:
            with self.log.open("rb") as log:
                log.seek(self.read)
                new = log.read()
            lines = new[:new.rfind(b"\n") + 1]
            self.read += len(lines)
            text = lines.decode(errors="replace")
            self.goes_on += replays_in(text) + text.count("the run goes on after step")
            return self.goes_on >= number
        return self.wait_until(is_said)

    def wait_for_understudy(self) -> None:
        """Until one has joined and waits (--verbose)."""
        def is_there() -> bool:
            log = self.said()
            return any(each.startswith("understudy-") and f"{each}: process " in log
                       and f" {each} has the place of " not in log
                       for each in children_of(self.child.pid))
        self.wait_until(is_there, 0.01)

    def fail(self) -> None:
        """Says what the run said last."""
        self.child.kill()
        self.child.wait()
        raise harness.Failure(harness.tail(self.said()))

    def end(self) -> list[float]:
        """Seconds of each step."""
        if self.child.wait(RUN_S):
            self.fail()
        return self.seconds()

    def interrupt(self, by: signal.Signals = signal.SIGINT) -> None:
        """Ends it in order before its last step. Fails where it ends otherwise."""
        self.child.send_signal(by)
        if self.child.wait(RUN_S) != ENDED_BY_SIGNAL + by:
            self.fail()

    def seconds(self) -> list[float]:
        """Of each step."""
        return [line["seconds"] for line in harness.json_lines(self.steps.read_text())
                if "seconds" in line]

    def losses(self) -> dict[int, float]:
        """By the step's number."""
        return {line["step"]: line["loss"] for line in harness.json_lines(self.steps.read_text())
                if "step" in line and "loss" in line}


def say_times(what: str, times: list[float]) -> None:
    """That half of them, 90 % and 99 % are not above, and the most."""
    ordered = sorted(times)
    for name, share in (("half", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1.0)):
        say_figure(f"{what}_{name}", ordered[math.ceil(share * len(ordered)) - 1], "s")


def say_state(folder: Path, stages: int) -> None:
    """Parameters, buffers and optimizer slots of each stage, by the files of its checkpoint."""
    place = folder / "state"
    place.mkdir()
    Run(place, [*SMALL, "--stages", str(stages), "--steps", "1", "--checkpoint-dir",
                str(place / "kept"), "--checkpoint-every", "1"]).end()
    for stage in range(stages):
        files = list((place / "kept").rglob(f"*.stage-{stage}.safetensors"))
        if not files:
            raise harness.Failure(f"the checkpoint has no file of stage-{stage}")
        say_figure(f"state_of_stage_{stage}", sum(each.stat().st_size for each in files) / 1e6,
                   "MB")


def measure_losses(stages: int, understudies: int = 0,
                   by: signal.Signals = signal.SIGKILL) -> Callable[[Path], None]:
    """From the signal that a stage gets to its replay, whose stage has all that its first action
    needs by then, and to the end of the first step that is told after that."""
    def measure(folder: Path) -> None:
        say_state(folder, stages)
        run = Run(folder, [*SMALL, "--stages", str(stages), "--steps", ENDLESS, "--on-fault",
                           "recover", "--understudies", str(understudies), "--verbose"])
        gaps, replays = [], []
        for number in range(LOSSES):
            run.wait_for(lines_of(run.steps) + STEPS_BETWEEN)
            if understudies:
                run.wait_for_understudy()
            name = holder_of(f"stage-{number % stages}", run.said())
            os.kill(children_of(run.child.pid)[name], by)
            lost = time.monotonic()
            replays.append(run.wait_for_replay(number + 1) - lost)
            gaps.append(run.wait_for(lines_of(run.steps) + 1) - lost)
        run.interrupt()
        say_times("to_replay", replays)
        say_times("to_next_step", gaps)
        say_figure("replayed", replays_in(run.said()), "losses")
        say_figure("survivors_computed_again", computed_again(run.said()), "actions")
        say_figure("usual_step", statistics.median(run.seconds()), "s")
    return measure


def trainer_of(watcher: int) -> int:
    """The one of a watching process's children that has started nodes; 0: it has not yet."""
    for task in Path(f"/proc/{watcher}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if children_of(int(child)):
                    return int(child)
    return 0


def measure_trainers(folder: Path) -> None:
    """From the kill of a trainer, whose stages end with it, to the first step that the next trainer
    tells, which goes on from memory. There is no checkpoint before the end."""
    say_state(folder, 2)
    run = Run(folder, [*SMALL, "--stages", "2", "--steps", ENDLESS, "--on-fault", "recover",
                       "--max-restarts", str(TRAINERS), "--checkpoint-dir", str(folder / "kept"),
                       "--resume", "auto"])
    gaps = []
    for number in range(TRAINERS):
        run.wait_for(lines_of(run.steps) + STEPS_BETWEEN)
        os.kill(trainer_of(run.child.pid), signal.SIGKILL)
        lost = time.monotonic()
        run.wait_until(lambda said=number + 1: run.said().count(FROM_MEMORY) >= said)
        gaps.append(run.wait_for(lines_of(run.steps) + 1) - lost)
    run.interrupt(signal.SIGTERM)  # where SIGINT is ignored, a process that watches leaves it so
    say_times("to_next_step", gaps)
    told = [line["step"] for line in harness.json_lines(run.steps.read_text()) if "step" in line]
    say_figure("steps_told_twice", len(told) - len(set(told)), "steps")
    say_figure("steps_not_told", max(told) - len(set(told)), "steps")
    say_figure("usual_step", statistics.median(run.seconds()), "s")


def cut_off(host: Host) -> float:
    """Takes its network down. Returns when it began to."""
    began = time.monotonic()
    subprocess.run(host.inside(["ip", "link", "set", "eth0", "down"]), check=True)
    return began


def kill_stage(host: Host) -> float:
    """The only one there. Returns when."""
    [stage] = [each.pid for each in harness.process_tree(host.process.pid)
               if harness.node_name(each.pid).startswith("stage-")]
    os.kill(stage, signal.SIGKILL)
    return time.monotonic()


def measure_hosts(lose: Callable[[Host], float], understudies: int) -> Callable[[Path], None]:
    """The same from the moment at which the stage of one of three hosts is lost in this way, each
    time of another launch. An understudy is on the first host, and the second one's stage is
    lost."""
    def measure(folder: Path) -> None:
        gaps, replays = [], []
        for number in range(CUTS):
            place = folder / str(number)
            place.mkdir()
            with Hosts(["alpha", "beta", "gamma"]) as hosts:
                file = place / "run.toml"
                file.write_text(over_ssh(hosts))
                run = Run(place, [*SMALL, "--stages", "3", "--steps", ENDLESS, "--on-fault",
                                  "recover", "--understudies", str(understudies)],
                          hosts.home.inside([program("troupe"), "launch", str(file), "--"]))
                run.wait_for(STEPS_BETWEEN)
                lost = lose(hosts.hosts[2])
                replays.append(run.wait_for_replay(1) - lost)
                gaps.append(run.wait_for(lines_of(run.steps) + 1) - lost)
                if replays_in(run.said()) != 1:
                    run.fail()  # all stages went back
            run.child.wait(RUN_S)
        say_times("to_replay", replays)
        say_times("to_next_step", gaps)
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
        said = re.search(r"checkpoint \S+ in (\d+) ms", run.said())
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
    """The second one keeps the versions of the first, and so does the trainer, which borrows
    them."""
    for each in (newest(run, stage), newest(run, (stage + 1) % LONG_STAGES)):
        os.kill(each, signal.SIGKILL)


def compare_losses(folder: Path, disturbed: Run, flags: list[str]) -> None:
    """Fails where a step has another loss than in the same run without a fault, or the two have
    fewer than LEAST_COMMON steps in common."""
    place = folder / "reference"
    place.mkdir()
    calm = Run(place, flags)
    time.sleep(REFERENCE_S)
    calm.interrupt()
    losses, others = calm.losses(), disturbed.losses()
    common = sorted(losses.keys() & others.keys())
    if len(common) < LEAST_COMMON:
        raise harness.Failure(f"{len(common)} steps can be compared; {LEAST_COMMON} are needed")
    if different := [step for step in common if losses[step] != others[step]]:
        raise harness.Failure(f"step {different[0]} has the loss {others[different[0]]!r}, and "
                              f"{losses[different[0]]!r} without faults")
    say_figure("steps_with_equal_losses", len(common), "steps")


def measure_faults(*faults: Callable[[Run, int], None]) -> Callable[[Path], None]:
    """What a run of half an hour keeps of its throughput with a fault every 29 s."""
    def measure(folder: Path) -> None:
        flags = [*SMALL, "--stages", str(LONG_STAGES), "--steps", ENDLESS, "--on-fault", "recover"]
        run = Run(folder, [*flags, "--checkpoint-dir", str(folder / "kept"), "--checkpoint-every",
                           str(CHECKPOINT_EVERY)])
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
        run.interrupt()
        log = run.said()
        say_figure("faults", count, "faults")
        say_figure("replayed", replays_in(log), "replays")
        say_figure("went_back", log.count("the run goes on after step"), "returns")
        say_figure("steps_a_second_calm", calm_steps / calm_s, "1/s")
        say_figure("steps_a_second", rate, "1/s")
        say_figure("kept", 100 * rate * calm_s / calm_steps, "%")
        compare_losses(folder, run, flags)
    return measure


KINDS: dict[str, Callable[[Path], None]] = {
    "kill.two_stages": measure_losses(2), "kill.one_stage": measure_losses(1),
    "kill.understudy": measure_losses(2, understudies=1),
    "stopped.two_stages": measure_losses(2, by=signal.SIGSTOP),
    "stopped.understudy": measure_losses(2, understudies=1, by=signal.SIGSTOP),
    "kill.trainer": measure_trainers, "kill.host_understudy": measure_hosts(kill_stage, 1),
    "unreachable.three_hosts": measure_hosts(cut_off, 0),
    "unreachable.understudy": measure_hosts(cut_off, 1),
    "price.resnet50": measure_price(), "price.resnet50_tcp": measure_price("--link", "tcp"),
    "checkpoints.price": measure_checkpoints, "checkpoints.files": measure_files,
    "faults.kills": measure_faults(kill),
    "faults.mixed": measure_faults(kill, stop, stop_and_continue, kill_neighbours)}


def main() -> int:
    return kinds_main(__file__, __doc__, KINDS, 1, LONG_S + REFERENCE_S + 2 * RUN_S, figure_table,
                      lambda _: "")


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
