"""A link, without actors, beside UCX, and a socket with a cipher, with nothing on top.

./dev bench link [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender

from figures import Bench, Comparison, read_figures

FIGURES = ["rtt_8B_p50", "tensor_1MiB_rate", "tensor_8MiB_rate", "tensor_64MiB_rate"]
FAMILIES = {"troupe": "Troupe", "raw": "raw UCX", "socket": "socket and cipher"}


def contenders(names: list[str]) -> list[Contender]:
    """One program is all."""
    program = harness.require_program("link_bench")
    flags = {"troupe": [], "raw": ["--raw", "--only", "shm"], "socket": ["--socket"]}
    return [Contender(name, [program, "--json", *flags[name]], read_figures) for name in names]


def comparisons() -> list[Comparison]:
    """Each transport beside what does the same: tcp is sealed, as UCX's is not."""
    return [Comparison(f"{link}.{figure}", "troupe", f"{link}.{figure}", peer)
            for link, peer in (("shm", "raw"), ("tcp", "socket")) for figure in FIGURES]


if __name__ == "__main__":
    bench = Bench("link", __doc__, FAMILIES, contenders, comparisons,
                  "two processes of this machine, loopback only", timeout_s=120.0)
    sys.exit(harness.guarded(bench.main))
