"""Steps of optimizers over a large model and over many small tensors, beside PyTorch's loops.

./dev bench optimizers [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender, Figure

from figures import Bench, Comparison, read_figures

WORKLOADS = ("160x160000", "4000x1000")
RULES = ("qhm", "sgd", "adamw")
FAMILIES = {"troupe": "Troupe", "eager": "eager Python", "script": "TorchScript",
            "compile": "torch.compile"}


def contenders(names: list[str]) -> list[Contender]:
    """Troupe's program, and one peer a way to run a loop."""
    made = [Contender("troupe", [harness.require_program("optimizers_bench"), "--json"],
                      read_figures)]
    for kind in names[1:]:
        peer = str(harness.PEERS / "optimizer_loops.py")
        made.append(Contender(kind, [harness.require_peers("optimizers"), peer, kind],
                              read_figures))
    return made


def comparisons() -> list[Comparison]:
    """Each step beside each peer's, then what has no peer."""
    rows = []
    for workload in WORKLOADS:
        for rule in RULES:
            name = f"{workload}.{rule}_step"
            rows += [Comparison(name, "troupe", name, peer) for peer in list(FAMILIES)[1:]
                     if peer != "compile" or workload == WORKLOADS[0]]
    for workload in WORKLOADS:
        rows.append(Comparison(f"{workload}.triad_rate", "troupe", f"{workload}.triad_rate"))
        rows += [Comparison(name, "troupe", name)
                 for name in (f"{workload}.{rule}_of_triad" for rule in RULES)]
    return rows + [Comparison(name, "troupe", name)
                   for name in (f"{WORKLOADS[0]}.{rule}_two_shards" for rule in ("triad", *RULES))]


class OptimizersBench(Bench):
    """A table that names the peer of each row and says how many times as fast Troupe is."""

    def rows(self, figures: list[Figure]) -> tuple[list[str], list[list[str]]]:
        rows, seen = [], set()
        for figure in figures:
            if (figure.name, figure.peer) in seen:
                continue
            seen.add((figure.name, figure.peer))
            faster = figure.peer_value / figure.value if figure.peer_value else None
            rows.append([figure.name, harness.number(figure.value), figure.unit or "x",
                         FAMILIES[figure.peer] if figure.peer else "-",
                         harness.number(figure.peer_value), harness.number(faster, 2, "x")])
        return ["figure", "Troupe", "unit", "peer", "peer's", "times as fast"], rows


if __name__ == "__main__":
    bench = OptimizersBench("optimizers", __doc__, FAMILIES, contenders, comparisons,
                            "one thread each, but for two_shards", timeout_s=900.0)
    sys.exit(harness.guarded(bench.main))
