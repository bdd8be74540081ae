"""ResNet-50 in two pipeline stages: Troupe beside PyTorch's own ways to do it.

./dev bench resnet [--peers] [--json FILE] [--steps N] [--rounds R] [--micro-batches 1,2,4,8]
                   [--variants fp32,fp32-channels_last,bf16-channels_last] [--schedules 1f1b,gpipe]
                   [--auto-cut]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds of a run's median
step time, the first step left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import harness
from harness import Contender, Failure, Figure, Reading, Result, Run, number

from figures import parser_of

STAGES = 2
FAMILIES = {"troupe": "Troupe", "replicas": "Troupe, replicas of one stage",
            "pipelining": "torch.distributed.pipelining",
            "rpc": "PyTorch RPC", "one_process": "one process, two threads"}
OWN = ("troupe", "replicas")
RIVALS = ("pipelining", "rpc", "one_process")
PROTOCOL = {"model": "resnet50", "classes": 1000, "batch_size": 120, "image_size": 128,
            "cut": "layer3"}
VARIANTS = {f"{precision}{suffix}": (precision, layout)
            for precision in ("fp32", "bf16")
            for suffix, layout in (("", "contiguous"), ("-channels_last", "channels_last"))}
PIPELINING_SCHEDULES = ("1f1b", "gpipe")
CPU_OVERHEAD_LIMIT = 1.15
LOSS_TOLERANCE = 0.01
MIB = 1 << 20
COLUMNS = ["contender", "variant", "schedule", "micro-batches", "cut"]  # of every row


@dataclass(frozen=True)
class Setup:
    """One row of the table."""

    family: str
    schedule: str
    micro_batches: int
    variant: str = "fp32"
    auto_cut: bool = False  # where Troupe's own profile says, instead of the protocol's place

    @property
    def name(self) -> str:
        """Unique, dotted."""
        middle = [self.schedule] if self.schedule else []
        last = [] if self.variant == "fp32" else [self.variant]
        last += ["auto-cut"] if self.auto_cut else []
        return ".".join([self.family, *middle, f"mb{self.micro_batches}", *last])

    @property
    def precision(self) -> str:
        """Of its arithmetic; layouts of one precision compete."""
        return VARIANTS[self.variant][0]

    def cells(self) -> list[str]:
        """The first columns of its row."""
        uncut = self.family in ("replicas", "one_process")
        cut = "auto" if self.auto_cut else "-" if uncut else "given"
        return [FAMILIES[self.family], self.variant, self.schedule or "-", str(self.micro_batches),
                cut]


def schedules_of(family: str, wanted: list[str]) -> list[str]:
    """The schedules a family is measured with."""
    if family == "troupe":
        return wanted
    if family == "pipelining":
        return [schedule for schedule in wanted if schedule in PIPELINING_SCHEDULES]
    return [""]


def setups(family: str, micro_batches: list[int], variants: list[str], schedules: list[str],
           own_cut: bool = False) -> list[Setup]:
    """A family's rows."""
    cuts = (False, True) if family == "troupe" and own_cut else (False,)
    return [Setup(family, schedule, count, variant, auto_cut) for variant in variants
            for auto_cut in cuts for schedule in schedules_of(family, schedules)
            for count in micro_batches if is_possible(family, schedule, count)]


def is_possible(family: str, schedule: str, micro_batches: int) -> bool:
    """All but GPipe and peers without a schedule need a micro-batch for each stage or replica."""
    return micro_batches >= STAGES or (schedule in ("", "gpipe") and family != "replicas")


# ---------------------------------------------------------------- how to start, how to read


def troupe_command(options: argparse.Namespace, setup: Setup) -> list[str]:
    """Troupe's trainer over UCX, one process a stage, or a replica of the only one."""
    side = options.image_size
    where = ("partition", "auto") if setup.auto_cut else ("cut", options.cut)
    pieces = {"stages": STAGES, where[0]: where[1], "schedule": setup.schedule}
    if setup.family == "replicas":
        pieces = {"stages": 1, "replicas": STAGES}
    flags = {
        "model": options.model, "classes": options.classes, **pieces,
        "micro-batches": setup.micro_batches,
        "batch-size": options.batch_size, "steps": options.steps,
        "data": f"synthetic:3x{side}x{side}:{options.classes}", "loss": "mse", "optimizer": "sgd",
        "lr": 0.05, "momentum": 0, "threads-per-stage": 1, "json": "{scratch}/steps.jsonl",
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return [harness.require_program("resnet_pipeline"), *words, "--no-eval", *variant(setup)]


def peer_command(options: argparse.Namespace, setup: Setup) -> list[str]:
    """A peer's script under the peers' Python."""
    script = {"rpc": "rpc_pipeline"}.get(setup.family, setup.family)
    flags = {"micro-batches": setup.micro_batches, "steps": options.steps}
    flags |= {"schedule": setup.schedule} if setup.schedule else {}
    flags |= {key.replace("_", "-"): getattr(options, key) for key in PROTOCOL}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return [harness.require_peers("resnet"), str(harness.PEERS / f"{script}.py"), *words,
            *variant(setup)]


def variant(setup: Setup) -> list[str]:
    """Its flags."""
    precision, layout = VARIANTS[setup.variant]
    return ["--precision", precision, "--memory-format", layout]


def read_steps(lines: list[dict], steps: int) -> Reading:
    """Time and loss from the step lines that Troupe and the peers print alike."""
    taken = [line for line in lines if "step" in line and "seconds" in line]
    if len(taken) != steps:
        raise Failure(f"reported {len(taken)} steps instead of {steps}")
    return {"step_s": harness.median(line["seconds"] for line in taken[1:]),
            "first_loss": taken[0]["loss"], "last_loss": taken[-1]["loss"]}


def peer_reader(options: argparse.Namespace) -> Callable[[Run], Reading]:
    """Reads a peer's steps and what each of its processes says of itself."""

    def read(run: Run) -> Reading:
        lines = run.json_lines()
        processes = [line for line in lines if "process" in line]
        peaks = {f"peak:{line['process']}": line["peak_memory_bytes"]
                 for line in sorted(processes, key=lambda line: line["process"])}
        return read_steps(lines, options.steps) | peaks

    return read


def troupe_reader(options: argparse.Namespace) -> Callable[[Run], Reading]:
    """Reads Troupe's steps, its memory as sampled from outside, and its idle check."""

    def read(run: Run) -> Reading:
        lines = harness.json_lines((run.scratch / "steps.jsonl").read_text())
        stages = [stage for line in lines for stage in line.get("stages", [])]
        busy_s = sum(stage["busy_s"] for stage in stages)
        overhead = {"cpu_overhead": run.cpu_s / busy_s} if busy_s else {}
        reported: Reading = {}
        for stage in stages:
            name = f"reported_peak:{stage['name']}"
            reported[name] = max(reported.get(name, 0), stage["peak_memory_bytes"])
        return (read_steps(lines, options.steps) | stage_peaks(run.peak_rss_bytes) | reported
                | overhead)

    return read


def stage_peaks(peaks: dict[int, int]) -> Reading:
    """The largest processes are the stages or replicas, started in order; a launcher is smaller."""
    largest = sorted(peaks, key=peaks.__getitem__)[-STAGES:]
    if len(largest) < STAGES:
        return {"peak:whole model": peaks[pid] for pid in largest}
    return {f"peak:stage {place}": peaks[pid] for place, pid in enumerate(sorted(largest), start=1)}


def contenders(options: argparse.Namespace) -> dict[str, tuple[Setup, Contender]]:
    """All that is to be measured, by name."""
    found = {}
    for family in options.only:
        command = troupe_command if family in OWN else peer_command
        reader = troupe_reader if family in OWN else peer_reader
        for setup in setups(family, options.micro_batches, options.variants, options.schedules,
                            options.auto_cut):
            contender = Contender(setup.name, command(options, setup), reader(options))
            found[setup.name] = (setup, contender)
    return found


# ---------------------------------------------------------------- what came out


@dataclass(frozen=True)
class Report:
    """The results with their rows."""

    rows: list[tuple[Setup, Result]]

    def family(self, name: str, precision: str | None = None) -> list[Result]:
        """All results of one family, or those of one precision."""
        return [result for setup, result in self.rows
                if setup.family == name and precision in (None, setup.precision)]

    def precisions(self) -> list[str]:
        """Those that were measured, fp32 first."""
        return sorted({setup.precision for setup, _ in self.rows}, reverse=True)

    def rivals(self, precision: str) -> list[tuple[str, Result]]:
        """The best configuration, in any layout, of each peer that was measured."""
        found = [(name, harness.best(self.family(name, precision), "step_s")) for name in RIVALS]
        return [(name, result) for name, result in found if result]

    def measured(self) -> list[tuple[Setup, Result]]:
        """The rows that have a time."""
        return [(setup, result) for setup, result in self.rows if result.readings]

    def times(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: seconds a step and ratios to the best of each peer in that precision."""
        rivals = {precision: dict(self.rivals(precision)) for precision in self.precisions()}
        names = [name for name in RIVALS if any(name in found for found in rivals.values())]
        header = [*COLUMNS, "s/step", "last loss",
                  *(f"/ {name}" for name in names)]
        rows = []
        for setup, result in self.measured():
            step_s = result.median("step_s")
            best = [rivals[setup.precision].get(name) for name in names]
            ratios = [number(step_s / rival.median("step_s")) if rival else "-" for rival in best]
            rows.append([*setup.cells(), number(step_s, 3),
                         number(result.median("last_loss"), 4), *ratios])
        return header, rows

    def memory(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: peak resident MiB of each process."""
        measured = self.measured()
        names = sorted({figure for _, result in measured for figure in result.figures()
                        if figure.startswith("peak:")}, key=lambda figure: figure.split()[-1])
        header = [*COLUMNS,
                  *(f"{name.removeprefix('peak:')} MiB" for name in names)]
        rows = [[*setup.cells(), *(number(_mib(result.median(name)), 0) for name in names)]
                for setup, result in measured]
        return header, rows

    def findings(self) -> list[str]:
        """One sentence each: best against best, the idle check, the loss check."""
        return [*self._speed(), *self._replicas(), *self._idle(), *self._losses()]

    def _speed(self) -> list[str]:
        """Against each peer's best in the same precision, and against its best in fp32."""
        found = []
        for precision in self.precisions():
            ours = harness.best(self.family("troupe", precision), "step_s")
            for against in dict.fromkeys([precision, "fp32"]) if ours else []:
                step_s = ours.median("step_s")
                found += [f"Troupe's best in {precision} ({ours.contender.name}, {step_s:.3f} s) "
                          f"takes {step_s / rival.median('step_s'):.2f} of the time of the best of "
                          f"{FAMILIES[name]} in {against} ({rival.contender.name}, "
                          f"{rival.median('step_s'):.3f} s)."
                          for name, rival in self.rivals(against)]
        return found

    def _replicas(self) -> list[str]:
        """Beside Troupe's best pipeline in the same precision."""
        found = []
        for precision in self.precisions():
            pipeline, replicas = (harness.best(self.family(name, precision), "step_s")
                                  for name in OWN)
            if pipeline and replicas:
                step_s, beside_s = (each.median("step_s") for each in (replicas, pipeline))
                found.append(f"{STAGES} replicas of one stage in {precision} "
                             f"({replicas.contender.name}, {step_s:.3f} s) take "
                             f"{step_s / beside_s:.2f} of the time of Troupe's best pipeline "
                             f"({pipeline.contender.name}, {beside_s:.3f} s).")
        return found

    def _idle(self) -> list[str]:
        """A stage that spins while it waits uses more CPU than it is busy; profiling is work."""
        overheads = [overhead for setup, result in self.rows
                     if setup.family in OWN and not setup.auto_cut
                     and (overhead := result.median("cpu_overhead")) is not None]
        if not overheads:
            return []
        within = "within" if max(overheads) <= CPU_OVERHEAD_LIMIT else "ABOVE"
        return [f"Idle check: Troupe's processes use at most {max(overheads):.2f} CPU seconds a "
                f"busy second of its stages, start-up included: {within} the limit of "
                f"{CPU_OVERHEAD_LIMIT:.2f}."]

    def _losses(self) -> list[str]:
        """Peers of one protocol begin with one loss; if not, they do not do the same work."""
        found = []
        for count, kind in sorted({(setup.micro_batches, setup.variant) for setup, _ in self.rows}):
            losses = [loss for setup, result in self.rows
                      if setup.family in RIVALS
                      and (setup.micro_batches, setup.variant) == (count, kind)
                      and (loss := result.median("first_loss")) is not None]
            if losses and max(losses) - min(losses) > LOSS_TOLERANCE * max(losses):
                found.append(f"WARNING: with {count} micro-batches in {kind} the peers' first "
                             f"losses differ: {min(losses):.5f} to {max(losses):.5f}.")
        return found

    def figures(self) -> list[Figure]:
        """Every median, times beside the best of each peer, memory beside pipelining's."""
        found = []
        rivals = {precision: [(rival, "step_s") for _, rival in self.rivals(precision)]
                  for precision in self.precisions()}
        twins = {(setup.schedule, setup.micro_batches, setup.variant): result
                 for setup, result in self.rows if setup.family == "pipelining"}
        for setup, result in self.rows:
            ours = setup.family in OWN
            twin = (twins.get((setup.schedule, setup.micro_batches, setup.variant)) if ours
                    else None)
            for figure in result.figures():
                against = rivals[setup.precision] if figure == "step_s" and ours else []
                if figure.startswith("peak:") and twin:
                    against = [(twin, figure)]
                name = f"resnet.{figure.replace(':', '.').replace(' ', '_')}.{setup.name}"
                found += harness.figures_against(result, figure, name, _unit(figure), against)
        return found

    def text(self) -> str:
        """For the terminal."""
        if not self.measured():
            return "nothing was measured"
        parts = [harness.table(*self.times()), harness.table(*self.memory()), *self.findings()]
        return "\n\n".join(parts)

    def markdown(self, where: str, how: str) -> str:
        """For the documents."""
        findings = "\n".join(f"- {finding}" for finding in self.findings())
        return "\n\n".join([
            f"Measured {where}.\n{how}.", harness.markdown_table(*self.times()), findings,
            "Peak resident memory of each process:", harness.markdown_table(*self.memory())])


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB


def _unit(figure: str) -> str:
    if "peak" in figure:
        return "bytes"
    return {"step_s": "s", "cpu_overhead": "CPU s / busy s"}.get(figure, "1")


# ---------------------------------------------------------------- the command line


def counts(text: str) -> list[int]:
    """Reads 1,2,4,8."""
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def families(text: str) -> list[str]:
    """Reads troupe,rpc."""
    found = text.split(",")
    if unknown := set(found) - set(FAMILIES):
        raise argparse.ArgumentTypeError(
            f"unknown contender {', '.join(sorted(unknown))}; known: {', '.join(FAMILIES)}")
    return found


def variants(text: str) -> list[str]:
    """Reads fp32,bf16-channels_last."""
    found = text.split(",")
    if unknown := set(found) - set(VARIANTS):
        raise argparse.ArgumentTypeError(
            f"unknown variant {', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}")
    return found


def parse() -> argparse.Namespace:
    """Reads and checks the flags."""
    parser = parser_of("resnet", __doc__, 3)
    parser.add_argument("--peers", action="store_true", help="measure PyTorch's ways too")
    parser.add_argument("--only", type=families, metavar="NAMES",
                        help=f"only these contenders, of {','.join(FAMILIES)}")
    parser.add_argument("--steps", type=int, default=4, help="steps a run (default: 4)")
    parser.add_argument("--micro-batches", type=counts, default=[1, 2, 4, 8], metavar="1,2,4,8")
    parser.add_argument("--variants", type=variants, default=["fp32"], metavar="NAMES",
                        help=f"of {','.join(VARIANTS)} (default: fp32, contiguous)")
    parser.add_argument("--schedules", type=lambda text: text.split(","),
                        default=["1f1b", "gpipe"], metavar="NAMES",
                        help="of Troupe, and those of them that torch.distributed.pipelining has")
    parser.add_argument("--auto-cut", action="store_true",
                        help="measure Troupe also with --partition auto")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds one run may take")
    for name, value in PROTOCOL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = parser.parse_args()
    options.only = options.only or (list(FAMILIES) if options.peers else ["troupe"])
    if options.steps < 2 or options.rounds < 1:
        parser.error("needs at least 2 steps (the first is not counted) and 1 round")
    for count in options.micro_batches:
        if options.batch_size % count:
            parser.error(f"{count} micro-batches do not divide the batch of {options.batch_size}")
    own = [name for name, value in PROTOCOL.items() if getattr(options, name) != value]
    if options.write_docs and (own or set(options.only) != set(FAMILIES)):
        parser.error("--write-docs needs --peers and the protocol's model, batch and cut")
    return options


def main() -> int:
    options = parse()
    planned = contenders(options)
    load = harness.load_before_start()
    results = harness.interleave([contender for _, contender in planned.values()],
                                 options.rounds, options.timeout)
    report = Report([(planned[result.contender.name][0], result) for result in results])
    how = (f"{options.model}, {options.batch_size} images of {options.image_size}x"
           f"{options.image_size}; "
           f"{options.rounds} rounds of {options.steps} steps")
    print(f"{how}\n{harness.circumstances(load)}\n\n{report.text()}")
    if options.json:
        harness.write_figures(options.json, report.figures())
    if options.write_docs and not any(result.failure for result in results):
        harness.write_section("resnet", report.markdown(harness.circumstances(load), how))
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
