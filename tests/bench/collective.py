"""Sums of gradients over two processes, beside memory and links, and gloo by torch.distributed.

./dev bench collective [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender

from figures import Bench, Comparison, read_figures

LINKS = ["tcp", "trusted"]  # sealed, and UCX's as it is
SUMS = ["all_reduce", "all_reduce.copied"]
MEMORY = ["memory.add", "memory.add_rate", "memory.copy_rate", "all_reduce_over_memory",
          "all_reduce.copied_over_memory"]
FAMILIES = {"troupe": "Troupe", "gloo": "gloo"}


def contenders(names: list[str]) -> list[Contender]:
    """The replicas' sum over each link, and the same bytes by gloo."""
    program = harness.require_program("collective_bench")
    made = [Contender(f"troupe.{link}", [program, "--json", "--only", link], read_figures)
            for link in ["shm", *LINKS]]
    if "gloo" in names:
        script = str(harness.PEERS / "gloo_all_reduce.py")
        made.append(Contender("gloo", [harness.require_peers("collective"), script], read_figures))
    return made


def comparisons() -> list[Comparison]:
    """Each sum has a peer; the rates of memory and links, and the ratios to them, have none."""
    rows = [Comparison(figure, "troupe.shm", figure, "gloo", "all_reduce") for figure in SUMS]
    rows += [Comparison(figure, "troupe.shm", figure) for figure in MEMORY]
    for link in LINKS:
        sums = f"all_reduce.{link}"
        rows.append(Comparison(sums, f"troupe.{link}", sums, "gloo", "all_reduce"))
        rows += [Comparison(figure, f"troupe.{link}", figure)
                 for figure in (f"link.{link}_rate", f"{sums}_of_link")]
    return rows


def make_bench() -> Bench:
    """What ./dev bench collective runs."""
    return Bench("collective", __doc__, FAMILIES, contenders, comparisons,
                 "two processes of this machine, 100 MB of gradients each", timeout_s=120.0)


if __name__ == "__main__":
    sys.exit(harness.guarded(make_bench().main))
