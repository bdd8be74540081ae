"""Schedules: what readiness gains, simulated; and the measured bubble beside the plan's.

./dev bench schedules [--json FILE] [--rounds R] [--write-docs]

Simulated: stage cores on a network and clock that seeds invent. Paced: stage processes over UCX
whose layers only sleep, so that all stages are equal and have a core; beside the same simulated.
Measured: ResNet-50 in two stages of one thread each, cut evenly by multiply-adds. A plan's bubble is
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
from pathlib import Path

import harness
from harness import Contender, Reading, Result, Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}
BASE = "1f1b"
STAGES, MICRO_BATCHES = 2, 8
STEPS, WARM_UP = 5, 2
OVER_UCX, IN_THREADS = "processes over UCX", "threads of one process"
PAIRS = 5  # of runs of these two, a round
PACED_STAGES, PACED_MICRO_BATCHES, PACED_STEPS = 4, 16, 8
PACE_MS, SIGMA = 40, 0.3  # of F, I and W each on a whole stage; of the lognormal jitter
WEIGHTS = 8  # layers of a stage, as schedules_bench has them
JITTERS = {0.0: "none", SIGMA: "actions, s=.3"}  # as schedules_bench names them
UNITS = {"bubble": "%", "least bubble": "%", "seconds": "s", "contexts": "MiB"}


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


def simulations() -> list[Contender]:
    """At the size of the table of jitters, and at that of the paced runs."""
    program = harness.require_program("schedules_bench")
    paced = [program, "50", str(PACED_STAGES), str(PACED_MICRO_BATCHES)]
    return [Contender("simulated", [program], read_simulation),
            Contender("simulated as paced", paced, read_simulation)]


def paced(name: str, sigma: float) -> Contender:
    """A run of sleeping layers. A norm of all gradients keeps its steps apart, as simulated ones
    are; a helper could sleep beside its stage, so there is none."""
    flags = {"model": "paced", "data": "synthetic:1x2x2:4:256", "schedule": name,
             "stages": PACED_STAGES, "chunks": CHUNKS[name], "micro-batches": PACED_MICRO_BATCHES,
             "batch-size": PACED_MICRO_BATCHES, "steps": PACED_STEPS, "clip-norm": 1e9,
             "json": "{scratch}/run.jsonl"}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    # So that the factor of a whole slice has the variance that was asked for.
    of_layer = math.sqrt(math.log1p(WEIGHTS / CHUNKS[name] * math.expm1(sigma**2)))
    pace = {"LAYERS": PACED_STAGES * WEIGHTS, "MS": PACE_MS / WEIGHTS, "SIGMA": of_layer}
    return Contender(f"paced.{name}.{sigma}", [
        "env", *(f"TROUPE_PACE_{key}={value}" for key, value in pace.items()),
        harness.require_program("paced_pipeline"), *words, "--no-idle-cores", "--no-eval",
        "--no-progress"], read_pace)


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


def paced_rows(simulated: Result, runs: dict[str, Result]) -> tuple[list[str], list[list[str]]]:
    """One row a schedule: its bubble, and its time over that of 1F1B."""
    header = ["schedule", "plan's bubble, %", "measured bubble, %", "simulated / 1f1b", "measured",
              "with jitter: simulated / 1f1b", "measured"]
    rows = []
    for name in CHUNKS:
        bubble = runs[f"paced.{name}.0.0"].median("bubble")
        planned = planned_bubble(name, PACED_STAGES, PACED_MICRO_BATCHES)
        row = [name, harness.number(planned, 1), harness.number(bubble, 1)]
        for sigma, jitter in JITTERS.items():
            seconds = runs[f"paced.{name}.{sigma}"].median("seconds")
            base = runs[f"paced.{BASE}.{sigma}"].median("seconds")
            ratio = seconds / base if seconds and base else None
            row += [harness.number(simulated.median(f"{name}, ready|{jitter}"), 3),
                    harness.number(ratio, 3)]
        rows.append(row)
    return header, rows


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench schedules", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a figure")
    parser.add_argument("--write-docs", action="store_true", help="rewrite docs/schedules.md")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    options = parser.parse_args()
    load = harness.load_before_start()
    simulated = harness.interleave(simulations(), 1, 600.0)
    runs = harness.interleave([paced(name, sigma) for sigma in JITTERS for name in CHUNKS],
                              options.rounds, 600.0)
    models = harness.interleave(measured(), options.rounds, 600.0)
    pairs = harness.interleave(pair(), PAIRS * options.rounds, 600.0)
    results = [*simulated, *runs, *models, *pairs]
    where = harness.circumstances(load)
    by_name = {result.contender.name: result for result in runs}
    tables = {"simulated": simulated_rows(simulated[0]),
              "paced": paced_rows(simulated[1], by_name), "measured": measured_rows(models),
              "link": pair_rows(pairs)}
    print("\n\n".join([where, *(harness.table(*table) for table in tables.values())]))
    if options.json:
        harness.write_figures(options.json, [
            made for result in results for figure in result.figures()
            for made in harness.figures_against(result, figure,
                                                f"{result.contender.name}.{figure}",
                                                UNITS.get(figure, "ratio"))])
    if options.write_docs and not any(result.failure for result in results):
        measured_at = f"Measured {where}; {options.rounds} rounds.\n\n"
        for name, table in tables.items():
            head = "" if name == "simulated" else measured_at
            harness.write_section(name, head + harness.markdown_table(*table), PAGE)
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
