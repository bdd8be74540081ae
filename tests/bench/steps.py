"""Whole training steps of Troupe's models, beside those of another build.

./dev bench steps [--base FOLDER] [--only NAME[,NAME..]] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds, of a run's median
step without its first; a ratio is the median over the rounds of this build's figure over the
other's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Contender, Missing, Reading, Result, Run

from figures import Quantity, parser_of, report
from resnet import PROTOCOL, read_steps

STEPS = 6
LIMIT_S = 900.0
SLOWER = 1.02
MIB = 1 << 20
HERE, BASE = "here", "base"
TEXT = harness.REPO / "docs" / "recovery.md"  # for the decoder to learn
HEADER = ["step", "s", "least", "most", "base s", "ratio", "MiB", "base MiB", "ratio of memory"]


def stages_of(count: int) -> list[str]:
    """A stage alone has two threads, others one each."""
    schedule, threads = ("1f1b", "2") if count == 1 else ("zb-h2", "1")
    return ["--stages", str(count), "--schedule", schedule, "--threads-per-stage", threads]


def resnet50(precision: str, stages: int) -> list[str]:
    """The step of `./dev bench resnet`."""
    side, classes = PROTOCOL["image_size"], PROTOCOL["classes"]
    cut = ["--cut", PROTOCOL["cut"]] if stages == 2 else []
    return ["resnet_pipeline", "--model", "resnet50", "--classes", str(classes), "--data",
            f"synthetic:3x{side}x{side}:{classes}", "--batch-size", str(PROTOCOL["batch_size"]),
            "--loss", "mse", "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0",
            "--memory-format", "channels_last", "--precision", precision, *stages_of(stages), *cut]


def resnet18(precision: str) -> list[str]:
    """On small images."""
    return ["resnet_pipeline", "--model", "resnet18", "--classes", "10", "--data",
            "synthetic:3x32x32:10", "--batch-size", "128", "--memory-format", "channels_last",
            "--precision", precision, *stages_of(2)]


def decoder(precision: str) -> list[str]:
    """Of 11 million weights."""
    return ["transformer_pipeline", "--layers", "6", "--width", "384", "--heads", "6", "--context",
            "128", "--data", f"text:{TEXT}", "--batch-size", "32", "--sample-bytes", "2",
            "--precision", precision, *stages_of(2)]


KINDS: dict[str, list[str]] = {
    f"{name}.{precision}": words for precision in ("fp32", "bf16") for name, words in (
        ("resnet50.1_stage", resnet50(precision, 1)), ("resnet50.2_stages", resnet50(precision, 2)),
        ("resnet50.4_stages", resnet50(precision, 4)), ("resnet18", resnet18(precision)),
        ("gpt", decoder(precision)))}


def program_of(build: Path | None, name: str) -> str:
    """A program of this build (None), or of the other one."""
    if build is None:
        return harness.require_program(name)
    if not (build / name).is_file():
        raise Missing(f"--base: there is no program {name} in {build}: name the folder 'bin' of a "
                      "build")
    return str(build / name)


def read(run: Run) -> Reading:
    """A run's step, and the memory of all its processes at the most."""
    lines = harness.json_lines((run.scratch / "steps.jsonl").read_text())
    return {"step": Quantity(read_steps(lines, STEPS)["step_s"], "s"),
            "memory": Quantity(sum(run.peak_rss_bytes.values()) / MIB, "MiB")}


def contenders(kinds: list[str], base: Path | None) -> list[Contender]:
    """Those of a kind run one after the other."""
    builds = {HERE: None} | ({BASE: base} if base else {})
    more = ["--micro-batches", "8", "--steps", str(STEPS), "--no-eval", "--json",
            "{scratch}/steps.jsonl"]
    return [Contender(f"{kind}.{name}",
                      [program_of(build, KINDS[kind][0]), *KINDS[kind][1:], *more], read)
            for kind in kinds for name, build in builds.items()]


def ratio(here: Result, base: Result | None, figure: str) -> float | None:
    """The median over the rounds in which both were measured."""
    pairs = zip(here.runs(figure), base.runs(figure)) if base else []
    return harness.median(mine / theirs for mine, theirs in pairs)


def rows(results: list[Result]) -> list[list[str]]:
    """One for each kind."""
    by_name = {result.contender.name: result for result in results}
    found = []
    for kind in KINDS:
        here, base = (by_name.get(f"{kind}.{build}") for build in (HERE, BASE))
        if here is None:
            continue
        steps = here.runs("step")
        of_base: Callable[[str], float | None] = base.median if base else lambda _: None
        found.append([kind, *(harness.number(each, 3) for each in (
            here.median("step"), min(steps, default=None), max(steps, default=None),
            of_base("step"), ratio(here, base, "step"))),
            *(harness.number(each, 0) for each in (here.median("memory"), of_base("memory"))),
            harness.number(ratio(here, base, "memory"), 3)])
    return found


def remark(results: list[Result]) -> str:
    """Which kinds of step are slower than those of the other build."""
    by_name = {result.contender.name: result for result in results}
    found = {kind: of_both for kind in KINDS if f"{kind}.{BASE}" in by_name and (
        of_both := ratio(by_name[f"{kind}.{HERE}"], by_name[f"{kind}.{BASE}"], "step"))}
    slower = [kind for kind, of_both in found.items() if of_both > SLOWER]
    if not found:
        return ""
    percent = 100 * (SLOWER - 1)
    return (f"Slower than the other build by more than {percent:.0f} %: "
            f"{', '.join(slower) if slower else 'none'} of {len(found)}.")


def version_of(base: Path) -> str:
    """The commit whose working copy the other build is in."""
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=base,
                           capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "of an unknown commit"


def parse() -> argparse.Namespace:
    """Reads and checks the flags."""
    parser = parser_of("steps", __doc__, 5)
    parser.add_argument("--base", type=Path, metavar="FOLDER",
                        help="the programs of another build, run in turn with this one's")
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := [each for each in options.only if each not in KINDS]:
        parser.error(f"nothing is called {unknown[0]}; known: {', '.join(KINDS)}")
    return options


def main() -> int:
    options = parse()
    planned = contenders(options.only, options.base)
    load = harness.load_before_start()
    results = harness.interleave(planned, options.rounds, LIMIT_S)
    where = f"{harness.circumstances(load)}; {options.rounds} rounds of {STEPS} steps"
    where += f"; base: Troupe {version_of(options.base)}" if options.base else ""
    return report("steps", results, (HEADER, rows(results)), remark(results), where, options)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
