"""Peer: requests between two processes over torch.distributed.rpc (TensorPipe).

Prints one JSON object a figure: {"name", "value", "unit"}, named as messaging_bench names them.
"""

from __future__ import annotations

import statistics
import time

import torch
from common import emit, parse_rank, rpc_ranks
from torch import Tensor
from torch.distributed import rpc

NAMES = ("client", "server")
WINDOW = 1024


def echo(number: int) -> int:
    """The server's answer to a small request."""
    return number


def count(tensor: Tensor) -> int:
    """The server's answer to a tensor."""
    return tensor.numel()


def round_trips(requests: int) -> list[float]:
    """Seconds of each of so many requests, one after another."""
    seconds = []
    for number in range(requests):
        started = time.perf_counter()
        assert rpc.rpc_sync("server", echo, (number,)) == number
        seconds.append(time.perf_counter() - started)
    return seconds


def pipelined(requests: int) -> float:
    """Requests a second with a window of them outstanding."""
    started = time.perf_counter()
    for first in range(0, requests, WINDOW):
        torch.futures.wait_all([rpc.rpc_async("server", echo, (number,))
                                for number in range(first, first + WINDOW)])
    return requests / (time.perf_counter() - started)


def tensor_s(size_bytes: int) -> float:
    """Median seconds from sending a tensor until the server has confirmed it."""
    tensor = torch.ones(size_bytes, dtype=torch.uint8)
    seconds = []
    for _ in range(9 if size_bytes > 32 << 20 else 41):
        started = time.perf_counter()
        assert rpc.rpc_sync("server", count, (tensor,)) == size_bytes
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


def measure() -> None:
    """The client's part."""
    round_trips(200)
    trips = sorted(round_trips(4000))
    emit(name="rtt_8B_p50", value=trips[len(trips) // 2] * 1e6, unit="us")
    emit(name="rtt_8B_p99", value=trips[len(trips) * 99 // 100] * 1e6, unit="us")
    pipelined(WINDOW)
    emit(name="pipelined_8B", value=pipelined(16 * WINDOW), unit="1/s")
    for mebibytes in (1, 8, 64):
        seconds = tensor_s(mebibytes << 20)
        emit(name=f"tensor_{mebibytes}MiB_one_way", value=seconds * 1e3, unit="ms")
        emit(name=f"tensor_{mebibytes}MiB_rate", value=(mebibytes << 20) / seconds / 1e6,
             unit="MB/s")


def main() -> None:
    options = parse_rank(__doc__)
    with rpc_ranks(options, NAMES, threads=4):
        if options.rank == 0:
            measure()


if __name__ == "__main__":
    main()
