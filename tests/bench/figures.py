"""What benchmarks share whose contenders print {"name", "value", "unit"} lines: Troupe's figures
in a table, each beside the peer's figure of the same kind."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import Contender, Figure, Reading, Result, Run

HIGHER_IS_BETTER = ("1/s", "MB/s")


class Quantity(float):
    """A value in the unit that it was measured in."""

    def __new__(cls, value: float, unit: str) -> Quantity:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def __getnewargs__(self) -> tuple[float, str]:
        return float(self), self.unit

    unit: str


def unit_of(runs: list[float]) -> str:
    """The unit of one figure's values."""
    return next((value.unit for value in runs if isinstance(value, Quantity)), "")


def read_figures(run: Run) -> Reading:
    """The figures a contender printed."""
    return {line["name"]: Quantity(line["value"], line["unit"]) for line in run.json_lines()}


@dataclass(frozen=True)
class Comparison:
    """One row: a figure of one of Troupe's contenders, and a peer's to set beside it."""

    name: str
    contender: str
    figure: str
    peer: str = ""
    peer_figure: str = ""  # as `name` if empty


def parser_of(name: str, doc: str | None, rounds: int,
              page: str = "docs/benchmarks.md") -> argparse.ArgumentParser:
    """The flags that every benchmark has. `rounds`: the default; `page`: what --write-docs writes."""
    parser = argparse.ArgumentParser(prog=f"./dev bench {name}", description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line a figure")
    parser.add_argument("--write-docs", action="store_true", help=f"rewrite {page}")
    parser.add_argument("--rounds", type=int, default=rounds,
                        help=f"runs of each (default: {rounds})")
    return parser


class Bench:
    """The command line of such a benchmark."""

    def __init__(self, name: str, text: str | None, families: dict[str, str],
                 contenders: Callable[[list[str]], list[Contender]],
                 comparisons: Callable[[], list[Comparison]], how: str,
                 timeout_s: float) -> None:
        self.name, self.text, self.families = name, text, families
        self.contenders, self.comparisons = contenders, comparisons
        self.how, self.timeout_s = how, timeout_s

    def parse(self) -> argparse.Namespace:
        """Reads and checks the flags."""
        parser = parser_of(self.name, self.text, 3)
        parser.add_argument("--peers", action="store_true", help="measure the peer too")
        options = parser.parse_args()
        if options.rounds < 1:
            parser.error("needs at least 1 round")
        if options.write_docs and not options.peers:
            parser.error("--write-docs needs --peers")
        return options

    def main(self) -> int:
        options = self.parse()
        names = list(self.families) if options.peers else ["troupe"]
        planned = self.contenders(names)
        load = harness.load_before_start()
        results = harness.interleave(planned, options.rounds, self.timeout_s)
        figures = self.figures({result.contender.name: result for result in results})
        where, how = harness.circumstances(load), f"{self.how}; {options.rounds} rounds"
        print(f"{how}\n{where}\n\n{harness.table(*self.rows(figures))}")
        if options.json:
            harness.write_figures(options.json, figures)
        if options.write_docs and not any(result.failure for result in results):
            harness.write_section(self.name, f"Measured {where}.\n{how}.\n\n"
                                             f"{harness.markdown_table(*self.rows(figures))}")
        return harness.exit_code(results)

    def figures(self, results: dict[str, Result]) -> list[Figure]:
        """Every comparison that was measured."""
        found = []
        for row in self.comparisons():
            measured = results[row.contender]
            rivals = [(results[row.peer], row.peer_figure or row.name)] if row.peer in results else []
            found += harness.figures_against(measured, row.figure, row.name,
                                             unit_of(measured.runs(row.figure)), rivals)
        return found

    def rows(self, figures: list[Figure]) -> tuple[list[str], list[list[str]]]:
        """The table. A ratio is Troupe's figure over the peer's, or the inverse where more is
        better: below 1, Troupe is ahead."""
        peer = " / ".join(name for family, name in self.families.items() if family != "troupe")
        rows = []
        for figure in figures:
            ratio = None
            if figure.peer_value:
                ratio = figure.value / figure.peer_value
                ratio = 1 / ratio if figure.unit in HIGHER_IS_BETTER else ratio
            rows.append([figure.name, cell(figure.value), cell(figure.peer_value), figure.unit,
                         harness.number(ratio, 3)])
        return ["figure", "Troupe", peer, "unit", "ratio"], rows


def cell(value: float | None) -> str:
    """A figure's value in a table."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def all_figures(results: list[Result]) -> list[Figure]:
    """Everything that was printed, under its contender's name."""
    return [made for result in results for figure in result.figures()
            for made in harness.figures_against(result, figure, f"{result.contender.name}.{figure}",
                                                unit_of(result.runs(figure)))]


def report(name: str, results: list[Result], table: tuple[list[str], list[list[str]]],
           remark: str, where: str, options: argparse.Namespace) -> int:
    """Prints a benchmark's table and remark, writes what `options` ask for, and gives its exit code.

    `options`: json, a path or nothing, and write_docs. `where`: the circumstances of the
    measurement.
    """
    print(f"{where}\n\n{harness.table(*table)}\n{remark}")
    if options.json:
        harness.write_figures(options.json, all_figures(results))
    if options.write_docs and not any(result.failure for result in results):
        text = f"Measured {where}.\n\n{harness.markdown_table(*table)}"
        harness.write_section(name, f"{text}\n\n{remark}" if remark else text)
    return harness.exit_code(results)


def figure_row(result: Result, figure: str) -> list[str]:
    """A figure's median, least and most, and its unit."""
    runs = result.runs(figure)
    return [f"{result.contender.name}.{figure}", harness.number(result.median(figure), 3),
            harness.number(min(runs), 3), harness.number(max(runs), 3), unit_of(runs)]


def figure_table(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a figure."""
    return ["figure", "median", "least", "most", "unit"], [
        figure_row(result, figure) for result in results for figure in result.figures()]


Measure = Callable[[Path], None]


def kinds_main(script: str, doc: str, kinds: dict[str, Measure], rounds: int, limit_s: float,
               rows: Callable[[list[Result]], tuple[list[str], list[list[str]]]],
               remark: Callable[[list[Result]], str],
               once: dict[str, Measure] | None = None, once_limit_s: float = 0.0) -> int:
    """The main of a benchmark that measures several kinds, each in a process of its own.

    Each kind gets a folder and prints its figures; `limit_s` is its longest time. `once`: kinds
    that are many runs themselves, each of which is measured only where `--only` names it, and
    once, and may take `once_limit_s`.
    """
    repeated, once = kinds, once or {}
    kinds = repeated | once
    name = Path(script).stem
    parser = parser_of(name, doc, rounds)
    parser.add_argument("--only", help=f"some of {', '.join(kinds)}" + (
        f"; left out: all but {', '.join(once)}, which take hours" if once else ""))
    parser.add_argument("--measure", choices=kinds, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        with tempfile.TemporaryDirectory(prefix=f"troupe-{name}-") as folder:
            kinds[options.measure](Path(folder))
        return 0
    wanted = options.only.split(",") if options.only else list(repeated)
    if unknown := [each for each in wanted if each not in kinds]:
        parser.error(f"nothing is called {unknown[0]}; known: {', '.join(kinds)}")
    planned = [Contender(each, [sys.executable, script, "--measure", each], read_figures)
               for each in wanted]
    load = harness.load_before_start()
    results = harness.interleave([each for each in planned if each.name in repeated],
                                 options.rounds, limit_s)
    results += harness.interleave([each for each in planned if each.name in once], 1, once_limit_s)
    where = f"{harness.circumstances(load)}; {options.rounds} rounds"
    return report(name, results, rows(results), remark(results), where, options)


def say_figure(name: str, value: float, unit: str) -> None:
    """One figure, for whoever runs this program as a contender."""
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)
