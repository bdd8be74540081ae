"""What the peers of the messaging benchmark measure, each in its own way of asking.

Figures are named as messaging_bench names them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import emit


@dataclass(frozen=True)
class Asking:
    """How a peer asks an actor, or a function, of another process."""

    echo: Callable[[int], int]  # one small request, and its answer
    echo_all: Callable[[Sequence[int]], object]  # all outstanding at once; returns when answered
    payload: Callable[[int], object]  # so many bytes, as the peer likes them best
    count: Callable[[object], int]  # the bytes that the other process has got


def measure(peer: Asking, requests: int, window: int) -> None:
    """Prints every figure. `requests`: of the small ones; `window`: outstanding at most."""
    _round_trips(peer, requests // 20)
    trips = sorted(_round_trips(peer, requests))
    emit(name="rtt_8B_p50", value=trips[len(trips) // 2] * 1e6, unit="us")
    emit(name="rtt_8B_p99", value=trips[len(trips) * 99 // 100] * 1e6, unit="us")
    peer.echo_all(range(window))
    started = time.perf_counter()
    windows = max(1, requests // window)
    for _ in range(windows):
        peer.echo_all(range(window))
    emit(name="pipelined_8B", value=windows * window / (time.perf_counter() - started), unit="1/s")
    for mebibytes in (1, 8, 64):
        seconds = _payload_s(peer, mebibytes << 20)
        emit(name=f"tensor_{mebibytes}MiB_one_way", value=seconds * 1e3, unit="ms")
        emit(name=f"tensor_{mebibytes}MiB_rate", value=(mebibytes << 20) / seconds / 1e6,
             unit="MB/s")


def _round_trips(peer: Asking, requests: int) -> list[float]:
    """Seconds of each of so many requests, one after another."""
    seconds = []
    for number in range(requests):
        started = time.perf_counter()
        assert peer.echo(number) == number
        seconds.append(time.perf_counter() - started)
    return seconds


def _payload_s(peer: Asking, size_bytes: int) -> float:
    """Median seconds from sending a payload until the other process has confirmed it."""
    payload = peer.payload(size_bytes)
    seconds = []
    for _ in range(9 if size_bytes > 32 << 20 else 41):
        started = time.perf_counter()
        assert peer.count(payload) == size_bytes
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])
