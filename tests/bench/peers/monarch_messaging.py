"""Peer: requests to an actor of Monarch in another process.

Prints one JSON object a figure: {"name", "value", "unit"}, named as messaging_bench names them.
"""

from __future__ import annotations

import torch
from asking import Asking, measure
from monarch.actor import Actor, endpoint, this_host
from torch import Tensor


class Server(Actor):
    """An actor in a process of its own."""

    @endpoint
    async def echo(self, number: int) -> int:
        return number

    @endpoint
    async def count(self, tensor: Tensor) -> int:
        return tensor.numel()


def main() -> None:
    processes = this_host().spawn_procs(per_host={"procs": 1})
    server = processes.spawn("server", Server)

    def echo_all(numbers: range) -> list[int]:
        return [answer.get() for answer in [server.echo.call_one(number) for number in numbers]]

    measure(Asking(
        echo=lambda number: server.echo.call_one(number).get(),
        echo_all=echo_all,
        payload=lambda size: torch.ones(size, dtype=torch.uint8),
        count=lambda tensor: server.count.call_one(tensor).get()),
        requests=2048, window=1024)
    processes.stop().get()


if __name__ == "__main__":
    main()
