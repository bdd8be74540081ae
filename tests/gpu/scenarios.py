"""Runs of the trainers on one GPU, from their start to the end of every process.

scenarios.py BIN DEVICE OUT.json [NAME..]

BIN has the programs. Exits with 1 where a run was not as it should be. Each scenario says what it
found in one line, with the seconds that it took. NAMEs choose some of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 90


def small_run(side: int, batch_size: int) -> list[str]:
    """Flags of a ResNet-18 on images of so many pixels."""
    return ["--data", f"synthetic:3x{side}x{side}:10:2000", "--no-eval", "--no-progress", "--model",
            "resnet18", "--batch-size", str(batch_size)]


SMALL = small_run(64, 64)
REHEARSED = small_run(32, 8)  # on a CPU
FIRST_LOSS = 0.002  # by which the first loss may differ from that of f32, relative
# Shares of the prediction between which a stage's peak is to be, workspaces of convolutions, which
# are not predicted, left aside.
MEMORY = 0.5, 1.1
WORKSPACES = Path(__file__).with_name("workspaces.py")


class Wrong(Exception):
    """A run was not as it should be."""


class Scenarios:
    """All of them, on one device."""

    def __init__(self, programs: Path, device: str, scratch: Path) -> None:
        self.programs, self.device, self.scratch = programs, device, scratch
        self.count = 0

    def command(self, *flags: str, program: str = "resnet_pipeline",
                devices: str = "") -> list[str]:
        """A run's, on the device, or on those of each stage."""
        return [str(self.programs / program), "--device", devices or self.device, *flags]

    def run(self, *flags: str, program: str = "resnet_pipeline", code: int = 0,
            devices: str = "") -> list[dict]:
        """Runs it to its end, and returns its steps."""
        self.count += 1
        log = self.scratch / f"{self.count}.json"
        command = self.command(*flags, program=program, devices=devices)
        done = subprocess.run([*command, "--json", str(log)],
                              timeout=PATIENCE_S, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, cwd=self.scratch)
        if done.returncode != code:
            raise Wrong(f"code {done.returncode} for {' '.join(flags)}: {done.stdout[-400:]}")
        self.output = done.stdout
        return steps_of(log)

    # Each returns what it has found, in words.

    def stages(self) -> str:
        """Pipelines of two and four stages, in threads and processes, beside one stage."""
        one = self.run(*SMALL, "--stages", "1", "--steps", "6")
        found = []
        for flags in (["--stages", "2"], ["--stages", "2", "--stages-in", "threads"],
                      ["--stages", "4", "--schedule", "zb-h1"],
                      ["--stages", "4", "--schedule", "zb-h1", "--stages-in", "threads"],
                      ["--stages", "2", "--schedule", "interleaved-1f1b", "--chunks", "2"],
                      ["--stages", "2", "--recompute", "layer2"]):
            apart = difference(one, self.run(*SMALL, *flags, "--steps", "6"))
            if apart > 1e-2:
                raise Wrong(f"{' '.join(flags)}: losses differ by {apart:.3g} from one stage's")
            found.append(apart)
        if max(found) == 0:
            return "all losses have the bits of one stage's"
        return f"losses differ from one stage's by {max(found):.2g} at most"

    def ucx_edges(self) -> str:
        """Two and four stages that share the GPU, each a process, and send each other tensors by
        UCX, beside links; and what is left when one of them is killed."""
        found = []
        for flags in (["--stages", "2"], ["--stages", "2", "--schedule", "zb-v", "--chunks", "2"],
                      ["--stages", "4", "--schedule", "zb-h1"]):
            common = [*SMALL, *flags, "--steps", "10"]
            by_links = self.run(*common)
            found.append(same_bits(by_links, self.run(*common, "--edges", "ucx"),
                                   f"{len(found) + 1}: losses by links and by UCX"))
            if "activations and gradients by UCX" not in self.output:
                raise Wrong(f"no line says that UCX carries the edges: {self.output[-300:]}")
        return "; ".join([*found, self.lost_stage("--edges", "ucx")])

    def repeats(self) -> str:
        """The same run twice."""
        flags = [*SMALL, "--stages", "2", "--steps", "10"]
        return same_bits(self.run(*flags), self.run(*flags), "losses of two runs of 10 steps")

    def verifies(self) -> str:
        """--verify, against one process on the CPU."""
        self.run(*SMALL, "--stages", "2", "--steps", "2", "--verify", "--verify-tolerance", "0.05")
        return "passed with a tolerance of 0.05"

    def precisions(self) -> str:
        """bf16, fp16 with a dynamic scale, TF32 and channels_last beside f32. What rounding does to
        a loss is small in the first step, of which it sees the forward alone, and grows with the
        updates."""
        common = [*SMALL, "--stages", "2", "--steps", "20"]
        full = self.run(*common)
        found = [f"f32 {full[0]['loss']:.4f} to {full[-1]['loss']:.4f}"]
        for name, bound, flags in (
                ("bf16", 0.05, ["--precision", "bf16", "--memory-format", "channels_last"]),
                ("fp16", 0.05, ["--precision", "fp16"]), ("tf32", 0.05, ["--tf32"])):
            steps = self.run(*common, *flags)
            first, most = difference(full[:1], steps[:1]), difference(full, steps)
            if first > FIRST_LOSS or most > bound:
                raise Wrong(f"{name}: losses differ from those of f32 by {first:.3g} in the first "
                            f"step (at most {FIRST_LOSS}) and {most:.3g} in all ({bound})")
            found.append(f"{name} {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f}, from f32 by "
                         f"{most:.2g} at most (bound {bound})")
        return "losses from the first to the 20th step: " + "; ".join(found)

    def memory(self) -> str:
        """What each of two stages, which are listed with their devices, has of the GPU's memory,
        beside the prediction and the largest workspace that a convolution of the model has there,
        which is not predicted."""
        steps = self.run("--data", "synthetic:3x224x224:10:256", "--no-eval", "--no-progress",
                         "--model", "resnet18", "--batch-size", "128", "--micro-batches", "2",
                         "--stages", "2", "--steps", "3", "--predict",
                         devices=f"{self.device},{self.device}")
        if "peak device memory" not in self.output:
            raise Wrong(f"no table of device memory: {self.output[-300:]}")
        where, workspace = largest_workspace(64)
        found = []
        for stage in steps[-1]["stages"]:
            peak, predicted = stage["peak_device_bytes"], stage["predicted_device_bytes"]
            if not MEMORY[0] * predicted < peak < MEMORY[1] * predicted + workspace:
                raise Wrong(f"{stage['name']} had {peak} bytes, of {predicted} predicted, and the "
                            f"{where} has a workspace of {workspace}")
            found.append(f"{stage['name']} {peak / 2**20:.0f} MiB, {peak / predicted:.2f} of the "
                         "prediction")
        return (f"peaks: {', '.join(found)}; the largest workspace, which is not predicted, is that "
                f"of the {where}: {workspace / 2**20:.0f} MiB")

    def decoder(self) -> str:
        """A decoder with tied weights in four stages, with AdamW and clipping."""
        text = self.scratch / "text.txt"
        text.write_text("the stage moves tensors between actors of a pipeline. " * 4000)
        flags = ["--data", f"text:{text}", "--no-eval", "--no-progress", "--optimizer", "adamw",
                 "--lr", "0.001", "--clip-norm", "1", "--precision", "bf16", "--steps", "30",
                 "--sample-bytes", "0"]
        program = "transformer_pipeline"
        one = self.run(*flags, "--stages", "1", program=program)
        four = self.run(*flags, "--stages", "4", "--schedule", "zb-h1", program=program)
        apart = difference(one[:3], four[:3])
        if apart > 1e-2 or four[-1]["loss"] > 0.9 * four[0]["loss"]:
            raise Wrong(f"losses differ by {apart:.3g}, and end at {four[-1]['loss']}")
        return f"loss from {four[0]['loss']:.3f} to {four[-1]['loss']:.3f} in 30 steps"

    def replicas(self) -> str:
        """Two replicas of one stage on one GPU, which sum over links; sharded state too."""
        one = self.run(*SMALL, "--stages", "1", "--logical-replicas", "2", "--steps", "6")
        two = self.run(*SMALL, "--stages", "1", "--replicas", "2", "--zero", "1", "--steps", "6")
        if "more replicas than GPUs" not in self.output:
            raise Wrong(self.output[-300:])
        return same_bits(one, two, "losses of one replica and two")

    def norms(self) -> str:
        """Two replicas of one stage on one GPU, whose batch norms are synchronized, beside one
        replica that computes both shares there, and beside two on the CPU."""
        flags = [*SMALL, "--stages", "1", "--batch-norm", "sync", "--steps", "6"]
        one = self.run(*flags, "--logical-replicas", "2")
        two = self.run(*flags, "--replicas", "2")
        alike = same_bits(one, two, "losses of one replica and two")
        apart = difference(self.run(*flags, "--replicas", "2", devices="cpu"), two)
        if apart > 1e-2:
            raise Wrong(f"losses differ by {apart:.3g} from those of CPUs")
        local = self.run(*SMALL, "--stages", "1", "--steps", "6", "--replicas", "2")
        if difference(local, two) == 0:
            raise Wrong("losses are those of batch norms that are not synchronized")
        return f"{alike}; they differ by {apart:.2g} at most from those of CPUs (bound 0.01)"

    def resumes(self) -> str:
        """A run that was interrupted by its number of steps, and one that was not."""
        whole = self.run(*SMALL, "--stages", "2", "--steps", "12")
        flags = [*SMALL, "--stages", "2", "--checkpoint-dir", str(self.scratch / "checkpoints")]
        first = self.run(*flags, "--steps", "6")
        rest = self.run(*flags, "--steps", "12", "--resume", "latest")
        if [each["step"] for each in first + rest] != list(range(1, 13)):
            raise Wrong("the resumed run has other steps")
        return same_bits(whole, first + rest, "losses of 12 steps, stopped and resumed after 6,")

    def lost_stage(self, *flags: str) -> str:
        """A stage that is killed ends the run with 1, and every process."""
        self.count += 1
        log = self.scratch / f"{self.count}.json"
        small = REHEARSED if self.device == "cpu" else SMALL
        run = self.start(*small, "--stages", "2", "--steps", "100000", "--json", str(log), *flags,
                         wait_s=0)
        wait_for_steps(run, log, 3)
        stages = children_of(run.pid)
        os.kill(stages[-1], signal.SIGKILL)
        begin = time.monotonic()
        output = run.communicate(timeout=PATIENCE_S)[0]
        took = time.monotonic() - begin
        if run.returncode != 1 or any(is_alive(each) for each in stages):
            raise Wrong(f"code {run.returncode}, alive {[s for s in stages if is_alive(s)]}: "
                        f"{output[-300:]}")
        return f"all ended after {took:.2f} s: {output.strip().splitlines()[-1]}"

    def interrupted(self) -> str:
        """Ctrl-C at the start and within training: code 130, or the end by SIGINT of a program that has
        hardly begun; no process left."""
        found = []
        for delay in (0.3, 1.2, 2.5, 4.0):
            run = self.start(*SMALL, "--stages", "2", "--steps", "100000", wait_s=delay)
            stages = children_of(run.pid)
            run.send_signal(signal.SIGINT)
            begin = time.monotonic()
            output = run.communicate(timeout=PATIENCE_S)[0]
            found.append(f"{run.returncode} after {time.monotonic() - begin:.2f} s")
            if any(is_alive(each) for each in stages) or run.returncode not in (130, -signal.SIGINT):
                raise Wrong(f"code {run.returncode} {delay} s after the start: {output[-300:]}")
        return "codes " + ", ".join(found)

    def recovers(self) -> str:
        """A stage is killed, and an understudy on the GPU does its last steps again."""
        flags = [*SMALL, "--stages", "2", "--steps", "80", "--on-fault", "recover"]
        whole = self.run(*flags)
        log = self.scratch / "recovered.json"
        run = self.start(*flags, "--understudies", "1", "--json", str(log), wait_s=0)
        wait_for_steps(run, log, 30)
        stages = stage_processes(run.pid)
        if "stage-1" not in stages:
            raise Wrong(f"the stages are {stages}")
        os.kill(stages["stage-1"], signal.SIGKILL)
        output = run.communicate(timeout=PATIENCE_S)[0]
        if run.returncode != 0:
            raise Wrong(f"code {run.returncode}: {output[-400:]}")
        return same_bits(whole, steps_of(log), "losses of 80 steps, with a stage lost in between,")

    def refusals(self) -> str:
        """A device that is not there, and a batch that does not fit."""
        done = subprocess.run([str(self.programs / "resnet_pipeline"), "--device", "cuda:7", *SMALL,
                               "--steps", "2"], timeout=PATIENCE_S, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.scratch)
        if done.returncode != 2 or "cuda:7" not in done.stdout:
            raise Wrong(f"cuda:7: code {done.returncode}: {done.stdout[-300:]}")
        large = ["--data", "synthetic:3x224x224:10:3000", "--no-eval", "--no-progress", "--steps", "1",
                 "--model", "resnet50", "--stages", "1", "--batch-size", "2400",
                 "--micro-batches", "1"]
        self.run(*large, code=1)
        if "out of memory" not in self.output:
            raise Wrong(f"a batch that does not fit: {self.output[-300:]}")
        return f"{done.stdout.strip()[-120:]}; {self.output.strip()[-300:]}"

    def start(self, *flags: str, wait_s: float) -> subprocess.Popen[str]:
        """Starts a run, and lets it run for so long."""
        run = subprocess.Popen(self.command(*flags), text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, cwd=self.scratch)
        time.sleep(wait_s)
        return run


def largest_workspace(samples: int) -> tuple[str, int]:
    """Of a ResNet-18's convolutions on so many images: which, and its bytes."""
    done = subprocess.run([sys.executable, str(WORKSPACES), str(samples)], timeout=PATIENCE_S,
                          text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise Wrong(f"{WORKSPACES.name}: code {done.returncode}: {done.stderr[-400:]}")
    sizes = {f"{what} of {name}": size for name, passes in json.loads(done.stdout).items()
             for what, size in passes.items()}
    return max(sizes.items(), key=lambda each: each[1])


def steps_of(log: Path) -> list[dict]:
    """The steps of a run's JSON lines."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [each for each in map(json.loads, lines) if "seconds" in each and "loss" in each]


def wait_for_steps(run: subprocess.Popen[str], log: Path, count: int) -> None:
    """Until a run's JSON lines have so many steps."""
    end = time.monotonic() + PATIENCE_S
    while len(steps_of(log)) < count:
        if run.poll() is not None or time.monotonic() > end:
            run.kill()
            raise Wrong(f"{count} steps have not come: {run.communicate()[0][-300:]}")
        time.sleep(0.02)


def difference(one: list[dict], other: list[dict]) -> float:
    """Of losses, the largest, relative."""
    if len(one) != len(other) or not one:
        raise Wrong(f"{len(one)} steps and {len(other)}")
    return max(abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in zip(one, other))


def same_bits(one: list[dict], other: list[dict], of: str) -> str:
    """Says so; Wrong where they are not the same."""
    apart = difference(one, other)
    if apart > 0:
        raise Wrong(f"{of} differ by {apart:.3g}")
    return f"{of} have the same bits"


def children_of(pid: int) -> list[int]:
    """Of all its threads, and theirs."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    own = [int(each) for text in texts for each in text.split()]
    return own + [each for child in own for each in children_of(child)]


def stage_processes(pid: int) -> dict[str, int]:
    """By the name of their role, as their command lines say."""
    found = {}
    for child in children_of(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        for word in words:
            if word.startswith("stage-"):
                found.setdefault(word, child)
    return found


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    """As the module's text says."""
    programs, device, out = Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3])
    chosen = sys.argv[4:]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        all_of = Scenarios(programs, device, Path(scratch))
        each: Callable[[], str]
        for each in (all_of.stages, all_of.ucx_edges, all_of.repeats, all_of.verifies,
                     all_of.precisions, all_of.memory, all_of.decoder, all_of.replicas,
                     all_of.norms, all_of.resumes, all_of.lost_stage, all_of.interrupted,
                     all_of.recovers, all_of.refusals):
            if chosen and each.__name__ not in chosen:
                continue
            begin = time.monotonic()
            try:
                passed, said = True, each()
            except (Wrong, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as problem:
                passed, said = False, f"{type(problem).__name__}: {problem}"
            took = time.monotonic() - begin
            results.append({"what": each.__name__.replace("_", " "), "passed": passed,
                            "said": said, "seconds": round(took, 1)})
            print(f"{each.__name__}: {'passed' if passed else 'FAILED'} in {took:.1f} s: {said}",
                  flush=True)
            out.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(each["passed"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
