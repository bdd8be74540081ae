"""Requests between actors, beside torch.distributed.rpc and the actors of Ray and Monarch.

./dev bench messaging [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys

import harness
from harness import Contender, Figure

from figures import HIGHER_IS_BETTER, Bench, Comparison, cell, read_figures

REMOTE = ["rtt_8B_p50", "rtt_8B_p99", "pipelined_8B", "tensor_1MiB_one_way", "tensor_8MiB_one_way",
          "tensor_64MiB_one_way", "tensor_1MiB_rate", "tensor_8MiB_rate", "tensor_64MiB_rate"]
LOCAL = ["local.without_hop", "local.rtt_p50", "local.rtt_p99", "local.pipelined", "actors.spawn",
         "actors.idle", "actors.messages"]
MESH = ["connect", "threads", "descriptors_a_link", "bytes_a_link"]
FAMILIES = {"troupe": "Troupe", "rpc": "PyTorch RPC", "ray": "Ray", "monarch": "Monarch"}
PEERS = list(FAMILIES)[1:]
RPC_OVER_TCP = "rpc.tcp"
LINKS = ("shm", "tcp", "trusted")


def contenders(names: list[str]) -> list[Contender]:
    """Troupe's processes apart from each other, so that each starts afresh."""
    program = harness.require_program("messaging_bench")
    made = [Contender(f"troupe.{part}", [program, "--json", "--only", part], read_figures)
            for part in (*LINKS, "local", "actors")]
    made += [Contender(f"troupe.cheap.{part}",
                       [program, "--json", "--only", part, "--cheap", "--small"], read_figures)
             for part in LINKS]
    made.append(Contender("troupe.mesh", [harness.require_program("mesh_bench"), "--json"],
                          read_figures))
    for peer in names[1:]:
        command = [harness.require_peers("messaging"), str(harness.PEERS / f"{peer}_messaging.py")]
        made.append(Contender(peer, command, read_figures))
        if peer == "rpc":
            made.append(Contender(RPC_OVER_TCP, [*command, "--over", "tcp"], read_figures))
    return made


def rival(peer: str, link: str) -> str:
    """The contender of a peer that Troupe's figures over `link` are set beside."""
    return RPC_OVER_TCP if peer == "rpc" and link != "shm" else peer


def comparisons() -> list[Comparison]:
    """Troupe's figures over each transport beside each peer's."""
    remote = [Comparison(f"{link}.{figure}", f"troupe.{link}", f"{link}.{figure}",
                         rival(peer, link), figure)
              for link in LINKS for figure in REMOTE for peer in PEERS]
    remote += [Comparison(f"{link}.cheap_{figure}", f"troupe.cheap.{link}", f"{link}.cheap_{figure}",
                          rival(peer, link), figure)
               for link in LINKS for figure in REMOTE[:3] for peer in PEERS]
    lent = "shm.lent_64MiB_one_way"
    remote += [Comparison(lent, "troupe.shm", lent, peer, "tensor_64MiB_one_way") for peer in PEERS]
    local = [Comparison(figure, f"troupe.{figure.split('.')[0]}", figure) for figure in LOCAL]
    mesh = [f"{link}.mesh_64_{figure}" for link in ("shm", "tcp") for figure in MESH]
    return remote + local + [Comparison(figure, "troupe.mesh", figure) for figure in mesh]


class MessagingBench(Bench):
    """A row a figure, a column a peer, and how many times as fast as the best peer Troupe is."""

    def rows(self, figures: list[Figure]) -> tuple[list[str], list[list[str]]]:
        beside: dict[str, list[Figure]] = {}
        for figure in figures:
            beside.setdefault(figure.name, []).append(figure)
        header = ["figure", "unit", *FAMILIES.values(), "times as fast as the best"]
        return header, [self.row(name, found) for name, found in beside.items()]

    @staticmethod
    def row(name: str, found: list[Figure]) -> list[str]:
        value, unit = found[0].value, found[0].unit
        peers = {figure.peer.split(".")[0]: figure.peer_value
                 for figure in found if figure.peer_value}
        faster = None
        if peers:
            is_rate = unit in HIGHER_IS_BETTER
            faster = value / max(peers.values()) if is_rate else min(peers.values()) / value
        return [name, unit, cell(value), *(cell(peers.get(peer)) for peer in PEERS),
                harness.number(faster, 1, "x")]


if __name__ == "__main__":
    bench = MessagingBench("messaging", __doc__, FAMILIES, contenders, comparisons,
                  "two processes of this machine, loopback only", timeout_s=300.0)
    sys.exit(harness.guarded(bench.main))
