"""What a thousand strangers a second cost a training run, in CPU seconds of its processes.

./dev bench strangers [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender, Result

from figures import parser_of, read_figures, report

LIMIT_PERCENT = 2.0
SAYS = {"mixed": "silent,byte,garbage,ucx,half,hello", "silent": "silent", "garbage": "garbage",
        "hello": "hello", "proof": "proof"}
COLUMNS = {"connections": "connections/s", "alone": "ms/step alone",
           "elsewhere": "strangers elsewhere", "strangers": "strangers here",
           "there": "elsewhere, % more", "more": "here, % more",
           "in_links": "in its links, %", "a_connection": "us a connection"}


def contenders() -> list[Contender]:
    """A run for each kind of stranger; within it, stretches with and without them take turns."""
    program = harness.require_program("strangers_bench")
    return [Contender(name, [program, "--json", "--says", says], read_figures)
            for name, says in SAYS.items()]


def rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a kind of stranger."""
    return (["strangers", *COLUMNS.values()],
            [[result.contender.name,
              *(harness.number(result.median(figure), 1) for figure in COLUMNS)]
             for result in results])


def remark(mixed: Result) -> str:
    """A sentence about the limit."""
    more = mixed.median("in_links")
    if more is None:
        return "Nothing was measured."
    kept = "within" if more < LIMIT_PERCENT else "OVER"
    return (f"What the run's links do about strangers of all kinds but those with proofs is "
            f"{more:.1f} % of a step's CPU seconds: {kept} the limit of {LIMIT_PERCENT:g} %.")


def main() -> int:
    options = parser_of("strangers", __doc__, 1).parse_args()
    planned = contenders()
    load = harness.load_before_start()
    results = harness.interleave(planned, options.rounds, 600.0)
    where = harness.circumstances(load)
    return report("strangers", results, rows(results), remark(results[0]), where, options)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
