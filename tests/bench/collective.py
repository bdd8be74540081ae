"""Sums of gradients over two processes, beside gloo through torch.distributed.

./dev bench collective [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender

from figures import Bench, Comparison, read_figures

SUMS = ["all_reduce", "all_reduce.copied"]
FAMILIES = {"troupe": "Troupe", "gloo": "gloo"}
FIGURES = ["all_reduce", "all_reduce.copied", "memory.add", "memory.add_rate", "memory.copy_rate",
           "all_reduce_over_memory", "all_reduce.copied_over_memory"]


def contenders(names: list[str]) -> list[Contender]:
    """The replicas' sum, and the same bytes by gloo."""
    made = [Contender("troupe", [harness.require_program("collective_bench"), "--json"],
                      read_figures)]
    if "gloo" in names:
        script = str(harness.PEERS / "gloo_all_reduce.py")
        made.append(Contender("gloo", [harness.require_peers("collective"), script], read_figures))
    return made


def comparisons() -> list[Comparison]:
    """The sum has a peer; the memory's rate and the ratio to it have none."""
    return [Comparison(figure, "troupe", figure, "gloo" if figure in SUMS else "", "all_reduce")
            for figure in FIGURES]


if __name__ == "__main__":
    bench = Bench("collective", __doc__, FAMILIES, contenders, comparisons,
                  "two processes of this machine, 100 MB of gradients each", timeout_s=120.0)
    sys.exit(harness.guarded(bench.main))
