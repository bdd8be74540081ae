"""Peer: a parameter server over torch.distributed.rpc, as PyTorch's tutorials write it.

"sync": the tutorial on batch updates (update_and_fetch_model with async_execution): the server waits
for the gradients of all trainers, averages them, steps torch.optim.SGD and returns the model to each.
"async": every trainer's gradients are one step, under the server's lock.

Prints one JSON object a figure: {"name", "value", "unit"}, named as parameter_server_bench does.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import torch
from common import emit, parse_rank, rpc_ranks
from torch import Tensor
from torch.distributed import rpc

TRAINERS = 2


@dataclass(frozen=True)
class Setting:
    """A model, and how often it is updated."""

    tensors: int
    shape: tuple[int, ...]  # of each tensor
    rounds: int
    touched: int = 0  # rows that a gradient has; 0: it is dense

    def gradient(self) -> Tensor:
        """Of one tensor."""
        if not self.touched:
            return torch.full(self.shape, 0.5)
        rows = torch.randint(self.shape[0], (1, self.touched))
        values = torch.full((self.touched, *self.shape[1:]), 0.5)
        return torch.sparse_coo_tensor(rows, values, self.shape).coalesce()


SETTINGS = {"100MB": Setting(50, (500_000,), 10), "160KB": Setting(40, (1_000,), 300),
            "wide": Setting(2, (100_000, 64), 20, touched=1_000)}


class ParameterServer:
    """Lives in the server's process; trainers call it by remote reference."""

    def __init__(self, setting: Setting) -> None:
        self.params = [torch.zeros(setting.shape) for _ in range(setting.tensors)]
        self.optimizer = torch.optim.SGD(self.params, lr=0.001)
        self.lock = threading.Lock()
        self.future: torch.futures.Future = torch.futures.Future()
        self.arrived = 0

    def add(self, gradients: list[Tensor]) -> None:
        """Adds a trainer's gradients to what is there."""
        for param, gradient in zip(self.params, gradients):
            param.grad = gradient if param.grad is None else param.grad.add_(gradient)

    def step(self) -> None:
        """One update with what was added."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    @staticmethod
    @rpc.functions.async_execution
    def update_together(server: rpc.RRef, gradients: list[Tensor]) -> torch.futures.Future:
        """Answered when all trainers' gradients are in."""
        self = server.local_value()
        with self.lock:
            self.add(gradients)
            self.arrived += 1
            future = self.future
            if self.arrived == TRAINERS:
                for param in self.params:
                    param.grad /= TRAINERS
                self.step()
                self.arrived, self.future = 0, torch.futures.Future()
                future.set_result(self.params)
        return future

    @staticmethod
    def update_alone(server: rpc.RRef, gradients: list[Tensor]) -> list[Tensor]:
        """One trainer's gradients, one step."""
        self = server.local_value()
        with self.lock:
            self.add(gradients)
            self.step()
            return self.params


def train(server: rpc.RRef, mode: str, setting: Setting, rounds: int) -> None:
    """One trainer's part."""
    call = ParameterServer.update_together if mode == "sync" else ParameterServer.update_alone
    gradients = [setting.gradient() for _ in range(setting.tensors)]
    for _ in range(rounds):
        rpc.rpc_sync(server.owner(), call, (server, gradients))


def measure() -> None:
    """The server's part: has the trainers train, and takes the time."""
    for size, setting in SETTINGS.items():
        for mode in ("sync", "async"):
            server = rpc.RRef(ParameterServer(setting))
            for count in (3, setting.rounds):
                started = time.perf_counter()
                torch.futures.wait_all([
                    rpc.rpc_async(f"trainer{i}", train, (server, mode, setting, count))
                    for i in range(TRAINERS)])
                seconds = time.perf_counter() - started
            updates = setting.rounds * (1 if mode == "sync" else TRAINERS)
            emit(name=f"{mode}_{size}_updates", value=updates / seconds, unit="1/s")


def main() -> None:
    options = parse_rank(__doc__)
    names = ["server", *(f"trainer{i}" for i in range(TRAINERS))]
    with rpc_ranks(options, names, threads=8):
        if options.rank == 0:
            measure()


if __name__ == "__main__":
    main()
