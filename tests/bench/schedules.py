"""Schedules: what readiness gains, simulated; and the measured bubble beside the plan's.

./dev bench schedules [--json FILE] [--rounds R] [--only TABLE,..] [--with FILE]
                      [--write-docs]

Simulated: stage cores on a network and clock that seeds invent. Paced: stage processes over UCX
whose layers only sleep, so that all stages are equal and have a core; beside it stage cores in a
simulation where each layer takes the same time, jitter included, alone and with the prices of a
layer, an action and a message that a trace of 1F1B without jitter shows.
Measured: ResNet-50 in two stages of one thread each, cut evenly by multiply-accumulates. A plan's bubble is
that of equal stages, from `troupe plan`. Link: the same stages with 1F1B as processes over UCX and as
threads of one process, pair by pair.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import Contender, Reading, Result, Run

from figures import parser_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}
BASE = "1f1b"
STAGES, MICRO_BATCHES = 2, 8
STEPS, WARM_UP = 5, 2
OVER_UCX, IN_THREADS = "processes over UCX", "threads of one process"
PAIRS = 5  # of runs of these two, a round
PACED_STAGES, PACED_MICRO_BATCHES, PACED_STEPS = 4, 16, 5
PACE_MS, SIGMA = 40, 0.3  # of F, I and W each on a whole stage; of the lognormal jitter
WEIGHTS = 8  # layers of a stage
TOGETHER = 4  # layers that jitter makes slow together (pace.hpp)
SIGMAS = (0.0, SIGMA)
WAITED_US = 2000  # a message takes less, and the chance of a wait that is shorter is small
TABLES = ("simulated", "paced", "measured", "link")
UNITS = {"layer us": "us", "action us": "us", "message us": "us", "bubble": "%", "least bubble": "%", "seconds": "s", "contexts": "MiB"}


def read_simulation(run: Run) -> Reading:
    """Each schedule's relative times, as "schedule|jitter"."""
    return {f"{line['schedule']}|{jitter}": value for line in run.json_lines()
            for jitter, value in line.items() if jitter != "schedule"}


def read_steps(run: Run) -> Reading:
    """The medians of a run's steps, the first ones left out."""
    lines = harness.json_lines((run.scratch / "run.jsonl").read_text())[WARM_UP:]
    contexts = [max(stage["peak_context_bytes"] for stage in line["stages"]) for line in lines]
    busy = [[stage["busy_s"] for stage in line["stages"]] for line in lines]
    uneven = [1 - statistics.mean(each) / max(each) for each in busy]
    return {"least bubble": 100 * statistics.median(uneven),
            "bubble": 100 * statistics.median(line["bubble"] for line in lines),
            "seconds": statistics.median(line["seconds"] for line in lines),
            "contexts": statistics.median(contexts) / 2**20}


def read_pace(run: Run) -> Reading:
    """A run of sleeping layers, without the first step."""
    lines = harness.json_lines((run.scratch / "run.jsonl").read_text())[1:]
    return {"bubble": 100 * statistics.median(line["bubble"] for line in lines),
            "seconds": statistics.mean(line["seconds"] for line in lines)}


def read_priced_pace(run: Run) -> Reading:
    """The same of 1F1B without jitter, and what layers, actions and messages took beside sleep."""
    return read_pace(run) | prices(harness.json_lines((run.scratch / "trace.jsonl").read_text()))


@dataclass(frozen=True)
class Phase:
    """A stage's F, I or W of a micro-batch (one of all steps), in microseconds."""

    kind: str
    turn: int
    begin: int
    end: int


def phases_of(trace: list[dict], stage: int) -> list[Phase]:
    """What a stage with one slice did after the first step, in order."""
    shares: dict[str, list[dict]] = {}
    for share in trace:
        if share["layer"] // WEIGHTS == stage and int(share["action"][1:]) >= PACED_MICRO_BATCHES:
            shares.setdefault(share["action"], []).append(share)
    return sorted((Phase(name[0], int(name[1:]), min(share["begin"] for share in of),
                         max(share["end"] for share in of)) for name, of in shares.items()),
                  key=lambda phase: phase.begin)


def prices(trace: list[dict]) -> Reading:
    """Means over a trace of 1F1B without jitter, in microseconds. A layer: beyond its sleep. An
    action: from the one before, where its input had long been there. A message: from the end of
    what made it to the action it starts on a stage that has long waited, less that of an action."""
    stages = [phases_of(trace, stage) for stage in range(PACED_STAGES)]
    ends = [{(phase.kind, phase.turn): phase.end for phase in phases} for phases in stages]
    layers = [(phase.end - phase.begin) / WEIGHTS - 1000 * PACE_MS / WEIGHTS
              for phases in stages for phase in phases]
    actions, hops = [], []
    for stage, phases in enumerate(stages):
        for before, phase in zip(phases, phases[1:]):
            if before.turn // PACED_MICRO_BATCHES != phase.turn // PACED_MICRO_BATCHES:
                continue
            source = {"F": stage - 1, "I": stage + 1, "W": stage}[phase.kind]
            made = 0 if phase.kind == "W" or not 0 <= source < PACED_STAGES else \
                ends[source][phase.kind, phase.turn]
            if made < before.end - WAITED_US:
                actions.append(phase.begin - before.end)
            elif made > before.end + WAITED_US:
                hops.append(phase.begin - made)
    action = statistics.mean(actions)
    return {"layer us": statistics.mean(layers), "action us": action,
            "message us": statistics.mean(hops) - action}


def simulation() -> list[Contender]:
    """Of the table of jitters."""
    return [Contender("simulated", [harness.require_program("schedules_bench")], read_simulation)]


def sigma_of_layers(sigma: float) -> float:
    """So that the factor of a whole stage has the variance that was asked for."""
    return math.sqrt(math.log1p(WEIGHTS / TOGETHER * math.expm1(sigma**2)))


def paced(name: str, sigma: float) -> Contender:
    """A run of sleeping layers. A norm of all gradients keeps its steps apart, as simulated ones
    are; a helper could sleep beside its stage, so there is none."""
    flags = {"model": "paced", "data": "synthetic:1x2x2:4:256", "schedule": name,
             "stages": PACED_STAGES, "chunks": CHUNKS[name], "micro-batches": PACED_MICRO_BATCHES,
             "batch-size": PACED_MICRO_BATCHES, "steps": PACED_STEPS, "clip-norm": 1e9,
             "json": "{scratch}/run.jsonl"}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    pace = {"LAYERS": PACED_STAGES * WEIGHTS, "MS": PACE_MS / WEIGHTS,
            "SIGMA": sigma_of_layers(sigma), "TRACE": "{scratch}/trace.jsonl"}
    return Contender(f"paced.{name}.{sigma}", [
        "env", *(f"TROUPE_PACE_{key}={value}" for key, value in pace.items()),
        harness.require_program("paced_pipeline"), *words, "--no-idle-cores", "--no-eval",
        "--no-progress"], read_priced_pace if (name, sigma) == (BASE, 0) else read_pace)


def simulated_pace(sigma: float, priced: Reading) -> Contender:
    """The same steps simulated, for all schedules: seconds by schedule."""
    kind = "priced" if any(priced.values()) else "free"
    numbers = [PACED_STAGES, PACED_MICRO_BATCHES, PACED_STAGES * WEIGHTS, PACE_MS / WEIGHTS,
               sigma_of_layers(sigma), PACED_STEPS, *priced.values()]
    return Contender(f"{kind}.{sigma}", [harness.require_program("schedules_bench"), "paced",
                                         *map(str, numbers)],
                     lambda run: {line["schedule"]: statistics.mean(line["seconds"][1:])
                                  for line in run.json_lines()})


def simulated_paces(base: Result) -> list[Contender]:
    """Without prices, and with those of a run of 1F1B without jitter."""
    names = ("layer us", "action us", "message us")
    measured_prices = {name: base.median(name) or 0.0 for name in names}
    return [simulated_pace(sigma, priced) for sigma in SIGMAS
            for priced in (dict.fromkeys(names, 0.0), measured_prices)]


def resnet(label: str, words: list[str]) -> Contender:
    """ResNet-50 in two stages."""
    return Contender(label, [
        harness.require_program("resnet_pipeline"), *words, "--stages", str(STAGES), "--model",
        "resnet50", "--data", "synthetic:3x64x64:100:512", "--batch-size", "64", "--micro-batches",
        str(MICRO_BATCHES), "--steps", str(STEPS), "--threads-per-stage", "1", "--no-eval",
        "--no-progress", "--json", "{scratch}/run.jsonl"], read_steps)


def measured() -> list[Contender]:
    return [resnet(name, ["--schedule", name]) for name in CHUNKS]


def pair() -> list[Contender]:
    return [resnet(OVER_UCX, ["--schedule", BASE]),
            resnet(IN_THREADS, ["--schedule", BASE, "--stages-in", "threads"])]


def planned_bubble(name: str, stages: int, micro_batches: int) -> float:
    """Of equal stages, in percent."""
    text = subprocess.run([harness.require_program("troupe"), "plan", "--schedule", name,
                           "--stages", str(stages), "--micro-batches", str(micro_batches)],
                          check=True, capture_output=True, text=True).stdout
    return float(re.search(r"bubble ([0-9.]+) %", text).group(1))


def simulated_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """One row a schedule, one column a kind of jitter."""
    names = list(dict.fromkeys(figure.split("|")[0] for figure in result.figures()))
    jitters = list(dict.fromkeys(figure.split("|")[1] for figure in result.figures()))
    return (["schedule", *jitters],
            [[name, *(harness.number(result.median(f"{name}|{jitter}"), 3) for jitter in jitters)]
             for name in names])


def over_base(result: Result | None, figure: str, base: Result | None, base_figure: str) -> str:
    """A cell: a time over that of 1F1B."""
    times = [of.median(name) if of else None for of, name in ((result, figure), (base, base_figure))]
    return harness.number(times[0] / times[1] if all(times) else None, 3)


def paced_rows(results: dict[str, Result]) -> tuple[list[str], list[list[str]]]:
    """One row a schedule: its bubble, and its time over that of 1F1B."""
    header = ["schedule", "plan's bubble, %", "measured bubble, %", "simulated / 1f1b",
              "with prices", "measured", "with jitter: simulated / 1f1b", "with prices", "measured"]
    rows = []
    for name in CHUNKS:
        planned = planned_bubble(name, PACED_STAGES, PACED_MICRO_BATCHES)
        row = [name, harness.number(planned, 1),
               harness.number(results[f"paced.{name}.0.0"].median("bubble"), 1)]
        for sigma in SIGMAS:
            for kind in ("free", "priced"):
                simulated = results.get(f"{kind}.{sigma}")
                row.append(over_base(simulated, name, simulated, BASE))
            row.append(over_base(results[f"paced.{name}.{sigma}"], "seconds",
                                 results[f"paced.{BASE}.{sigma}"], "seconds"))
        rows.append(row)
    return header, rows


def priced(base: Result) -> str:
    """A sentence about what the trace shows."""
    return "Prices: " + ", ".join(
        f"{name.removesuffix(' us')} {harness.number(base.median(name), 0)} µs"
        for name in ("layer us", "action us", "message us")) + "."


def measured_rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a run."""
    header = ["schedule", "plan's bubble, %", "measured bubble, %", "of it for an uneven cut",
              "s a step", "contexts, MiB"]
    rows = []
    for result in results:
        name = result.contender.name
        rows.append([name, harness.number(planned_bubble(name, STAGES, MICRO_BATCHES), 1),
                     harness.number(result.median("bubble"), 1),
                     harness.number(result.median("least bubble"), 1),
                     harness.number(result.median("seconds")),
                     harness.number(result.median("contexts"), 0)])
    return header, rows


def pair_rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Seconds a step of both, and what UCX costs: the median over the pairs, and their spread."""
    over_ucx, in_threads = ([reading["seconds"] for reading in result.readings]
                            for result in results)
    costs = sorted(100 * (a / b - 1) for a, b in zip(over_ucx, in_threads))
    header = ["stages", "s a step", "over threads, %", "least", "most"]
    if not costs:
        return header, []
    rows = [[IN_THREADS, harness.number(statistics.median(in_threads), 3), "-", "-", "-"],
            [OVER_UCX, harness.number(statistics.median(over_ucx), 3),
             *(harness.number(cost, 1)
               for cost in (statistics.median(costs), costs[0], costs[-1]))]]
    return header, rows


def chosen_tables(text: str) -> list[str]:
    """What --only names."""
    names = text.split(",")
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(f"there is no table '{name}': {', '.join(TABLES)}")
    return names


@dataclass(frozen=True)
class Section:
    """A table, what it came from, and what is to be said about it."""

    results: list[Result]
    table: tuple[list[str], list[list[str]]]
    remark: str = ""


def recall(results: list[Result], files: list[Path]) -> None:
    """Adds what files of --json say of earlier rounds."""
    for path in files:
        runs = {line["name"]: line["runs"] for line in harness.json_lines(path.read_text())}
        for result in results:
            columns = {figure: runs[name] for figure in result.figures()
                       if (name := f"{result.contender.name}.{figure}") in runs}
            result.readings += [dict(zip(columns, values)) for values in zip(*columns.values())]


def measure(name: str, rounds: int, earlier: list[Path]) -> Section:
    """One of TABLES."""
    if name == "simulated":
        results = harness.interleave(simulation(), 1, 600.0)
        return Section(results, simulated_rows(results[0]))
    if name == "paced":
        runs = harness.interleave([paced(schedule, sigma) for sigma in SIGMAS
                                   for schedule in CHUNKS], rounds, 600.0)
        recall(runs, earlier)
        base = next(result for result in runs if result.contender.name == f"paced.{BASE}.0.0")
        results = runs + harness.interleave(simulated_paces(base), 1, 600.0)
        by_name = {result.contender.name: result for result in results}
        return Section(results, paced_rows(by_name), priced(base))
    if name == "measured":
        results = harness.interleave(measured(), rounds, 600.0)
        recall(results, earlier)
        return Section(results, measured_rows(results))
    results = harness.interleave(pair(), PAIRS * rounds, 600.0)
    recall(results, earlier)
    return Section(results, pair_rows(results))


def main() -> int:
    parser = parser_of("schedules", __doc__, 3, "docs/schedules.md")
    parser.add_argument("--with", type=Path, action="append", default=[], metavar="FILE",
                        dest="earlier", help="count the rounds that --json wrote there too")
    parser.add_argument("--only", type=chosen_tables, default=TABLES, metavar="TABLE,..",
                        help=f"of {', '.join(TABLES)} (default: all)")
    options = parser.parse_args()
    load = harness.load_before_start()
    sections = {name: measure(name, options.rounds, options.earlier) for name in options.only}
    results = [result for section in sections.values() for result in section.results]
    where = harness.circumstances(load)
    print("\n\n".join([where, *(harness.table(*section.table) + f"\n{section.remark}".rstrip()
                                for section in sections.values())]))
    if options.json:
        harness.write_figures(options.json, [
            made for result in results for figure in result.figures()
            for made in harness.figures_against(result, figure,
                                                f"{result.contender.name}.{figure}",
                                                UNITS.get(figure, "ratio"))])
    if options.write_docs and not any(result.failure for result in results):
        for name, section in sections.items():
            runs = f"{len(section.results[0].readings)} {'pairs' if name == 'link' else 'rounds'}"
            head = "" if name == "simulated" else f"Measured {where}; {runs}."
            words = " ".join(filter(None, [head, section.remark]))
            harness.write_section(name, f"{words}\n\n{harness.markdown_table(*section.table)}", PAGE)
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
