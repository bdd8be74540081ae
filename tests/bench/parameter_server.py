"""A parameter server of actors, beside the link it uses and one over torch.distributed.rpc.

./dev bench parameter_server [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender

from figures import Bench, Comparison, read_figures

ALONE = ["link_rate", "push_pull_rate", "push_pull_of_link", "async_160KB_8_workers_updates"]
BESIDE = [f"{mode}_{size}_updates" for size in ("100MB", "160KB", "wide")
          for mode in ("sync", "async")]
FAMILIES = {"troupe": "Troupe", "rpc": "PyTorch RPC"}
LINKS = ("shm", "tcp")


def contenders(names: list[str]) -> list[Contender]:
    """Each link in processes of its own, and the peer."""
    program = harness.require_program("parameter_server_bench")
    made = [Contender(f"troupe.{link}", [program, "--json", "--only", link], read_figures)
            for link in LINKS]
    if "rpc" in names:
        peer = str(harness.PEERS / "rpc_parameter_server.py")
        made.append(Contender("rpc", [harness.require_peers("parameter_server"), peer],
                              read_figures))
    return made


def comparisons() -> list[Comparison]:
    """Troupe's figures over each link; updates beside the peer's."""
    rows = [Comparison(f"{link}.{figure}", f"troupe.{link}", f"{link}.{figure}")
            for link in LINKS for figure in ALONE]
    return rows + [Comparison(f"{link}.{figure}", f"troupe.{link}", f"{link}.{figure}", "rpc",
                              figure) for link in LINKS for figure in BESIDE]


if __name__ == "__main__":
    bench = Bench("parameter_server", __doc__, FAMILIES, contenders, comparisons,
                  "two shards and two workers (eight where it says so), each a process of this "
                  "machine", timeout_s=300.0)
    sys.exit(harness.guarded(bench.main))
