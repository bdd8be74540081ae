"""Schedules: what readiness gains, simulated; and the measured bubble beside the plan's.

./dev bench schedules [--json FILE] [--rounds R] [--write-docs]

Simulated: stage cores on a network and clock that seeds invent. Measured: ResNet-50 in two stage
processes of one thread each, cut evenly by multiply-adds; the plan's bubble is that of equal stages,
from `troupe plan`.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

import harness
from harness import Contender, Reading, Result, Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedules.md"
MEASURED = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}
MICRO_BATCHES = 8
STEPS, WARM_UP = 5, 2
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


def contenders() -> list[Contender]:
    """The simulation, and a run of each schedule."""
    made = [Contender("simulated", [harness.require_program("schedules_bench")], read_simulation)]
    program = harness.require_program("resnet_pipeline")
    for name in MEASURED:
        made.append(Contender(name, [
            program, "--schedule", name, "--stages", "2", "--model", "resnet50", "--data",
            "synthetic:3x64x64:100:512", "--batch-size", "64", "--micro-batches",
            str(MICRO_BATCHES), "--steps", str(STEPS), "--threads-per-stage", "1", "--no-eval",
            "--no-progress", "--json", "{scratch}/run.jsonl"], read_steps))
    return made


def planned_bubble(name: str) -> float:
    """Of equal stages, in percent."""
    text = subprocess.run([harness.require_program("troupe"), "plan", "--schedule", name,
                           "--stages", "2", "--micro-batches", str(MICRO_BATCHES)],
                          check=True, capture_output=True, text=True).stdout
    return float(re.search(r"bubble ([0-9.]+) %", text).group(1))


def simulated_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """One row a schedule, one column a kind of jitter."""
    names = list(dict.fromkeys(figure.split("|")[0] for figure in result.figures()))
    jitters = list(dict.fromkeys(figure.split("|")[1] for figure in result.figures()))
    return (["schedule", *jitters],
            [[name, *(harness.number(result.median(f"{name}|{jitter}"), 3) for jitter in jitters)]
             for name in names])


def measured_rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a schedule."""
    return (["schedule", "plan's bubble, %", "measured bubble, %", "of it for an uneven cut",
             "s a step", "contexts, MiB"],
            [[result.contender.name, harness.number(planned_bubble(result.contender.name), 1),
              harness.number(result.median("bubble"), 1),
              harness.number(result.median("least bubble"), 1),
              harness.number(result.median("seconds")),
              harness.number(result.median("contexts"), 0)] for result in results])


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench schedules", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a figure")
    parser.add_argument("--write-docs", action="store_true", help="rewrite docs/schedules.md")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    options = parser.parse_args()
    load = harness.load_before_start()
    planned = contenders()
    simulated = harness.interleave(planned[:1], 1, 600.0)
    measured = harness.interleave(planned[1:], options.rounds, 600.0)
    where = harness.circumstances(load)
    print(f"{harness.table(*simulated_rows(simulated[0]))}\n\n{where}\n\n"
          f"{harness.table(*measured_rows(measured))}")
    if options.json:
        harness.write_figures(options.json, [
            made for result in simulated + measured for figure in result.figures()
            for made in harness.figures_against(result, figure,
                                                f"{result.contender.name}.{figure}",
                                                UNITS.get(figure, "ratio"))])
    if options.write_docs and not any(result.failure for result in simulated + measured):
        harness.write_section("simulated", harness.markdown_table(*simulated_rows(simulated[0])),
                              PAGE)
        harness.write_section("measured", f"Measured {where}; {options.rounds} rounds.\n\n"
                              f"{harness.markdown_table(*measured_rows(measured))}", PAGE)
    return harness.exit_code(simulated + measured)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
