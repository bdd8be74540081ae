"""Requests between actors, beside torch.distributed.rpc.

./dev bench messaging [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender

from figures import Bench, Comparison, read_figures

REMOTE = ["rtt_8B_p50", "rtt_8B_p99", "pipelined_8B", "tensor_1MiB_one_way", "tensor_8MiB_one_way",
          "tensor_64MiB_one_way", "tensor_1MiB_rate", "tensor_8MiB_rate", "tensor_64MiB_rate"]
LOCAL = ["local.without_hop", "local.rtt_p50", "local.rtt_p99", "local.pipelined", "actors.spawn",
         "actors.idle", "actors.messages"]
MESH = ["connect", "threads", "descriptors_a_link", "bytes_a_link"]
FAMILIES = {"troupe": "Troupe", "rpc": "PyTorch RPC"}


def contenders(names: list[str]) -> list[Contender]:
    """Troupe's processes apart from each other, so that each starts afresh."""
    program = harness.require_program("messaging_bench")
    made = [Contender(f"troupe.{part}", [program, "--json", "--only", part], read_figures)
            for part in ("shm", "tcp", "local", "actors")]
    made.append(Contender("troupe.mesh", [harness.require_program("mesh_bench"), "--json"],
                          read_figures))
    if "rpc" in names:
        peer = str(harness.PEERS / "rpc_messaging.py")
        made.append(Contender("rpc", [harness.require_peers("messaging"), peer], read_figures))
    return made


def comparisons() -> list[Comparison]:
    """Troupe's figures over each transport beside the peer's."""
    remote = [Comparison(f"{link}.{figure}", f"troupe.{link}", f"{link}.{figure}", "rpc", figure)
              for link in ("shm", "tcp") for figure in REMOTE]
    local = [Comparison(figure, f"troupe.{figure.split('.')[0]}", figure) for figure in LOCAL]
    mesh = [f"{link}.mesh_64_{figure}" for link in ("shm", "tcp") for figure in MESH]
    return remote + local + [Comparison(figure, "troupe.mesh", figure) for figure in mesh]


if __name__ == "__main__":
    bench = Bench("messaging", __doc__, FAMILIES, contenders, comparisons,
                  "two processes of this machine, loopback only", timeout_s=300.0)
    sys.exit(harness.guarded(bench.main))
