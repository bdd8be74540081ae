"""Peer: TorchScript's fork and wait, and the LSTM ensemble of PyTorch's tutorial on them.

Prints one JSON object a figure: {"name", "value", "unit"}, named as fork.py names Troupe's.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from common import emit
from torch import Tensor, nn

FORKS = 100


def neg(x: Tensor) -> Tensor:
    """The work that is forked."""
    return torch.neg(x)


@torch.jit.script
def fork_and_wait(x: Tensor, times: int) -> Tensor:
    """Forks and waits, one after another."""
    y = x
    for _ in range(times):
        y = torch.jit.wait(torch.jit.fork(neg, x))
    return y


@torch.jit.script
def fork_many(x: Tensor, times: int) -> Tensor:
    """Forks all, then waits for all and adds them up."""
    forked = [torch.jit.fork(neg, x)]
    for _ in range(times - 1):
        forked.append(torch.jit.fork(neg, x))
    total = torch.zeros([])
    for each in forked:
        total = total + torch.jit.wait(each)
    return total


class Bidirectional(nn.Module):
    """Two LSTMs over a sequence, one of them reversed; the directions are forked or not."""

    def __init__(self, channels: int, fork: bool) -> None:
        super().__init__()
        self.ahead = nn.LSTM(channels, channels)
        self.reversed = nn.LSTM(channels, channels)
        self.fork: torch.jit.Final[bool] = fork

    def forward(self, x: Tensor) -> Tensor:  # [T, B, C] -> [T, B, 2C]
        if self.fork:
            forked = torch.jit.fork(self.ahead, x)
            back, _ = self.reversed(torch.flip(x, [0]))
            ahead, _ = torch.jit.wait(forked)
        else:
            ahead, _ = self.ahead(x)
            back, _ = self.reversed(torch.flip(x, [0]))
        return torch.cat([ahead, torch.flip(back, [0])], dim=2)


class Ensemble(nn.Module):
    """The sum of several models; they are forked or not."""

    def __init__(self, models: int, channels: int, form: str) -> None:
        super().__init__()
        self.models = nn.ModuleList(
            [Bidirectional(channels, form != "serial") for _ in range(models)])
        self.fork: torch.jit.Final[bool] = form == "models"

    def forward(self, x: Tensor) -> Tensor:  # [T, B, C] -> [T, B, 2C]
        outputs: list[Tensor] = []
        if self.fork:
            forked: list[torch.jit.Future[Tensor]] = []
            for model in self.models:
                forked.append(torch.jit.fork(model, x))
            for each in forked:
                outputs.append(torch.jit.wait(each))
        else:
            for model in self.models:
                outputs.append(model(x))
        return torch.stack(outputs).sum(0)


def median_s(body, runs: int) -> float:
    """Median seconds of a call; the first two are not counted (the profiling executor's)."""
    seconds = []
    for _ in range(runs + 2):
        started = time.perf_counter()
        body()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


def measure_forks() -> None:
    """What a fork and a wait cost."""
    one = torch.ones([])
    with torch.no_grad():
        assert fork_many(one, FORKS).item() == -FORKS
        emit(name="neg.fork_wait", value=median_s(lambda: fork_and_wait(one, 2000), 9) / 2000 * 1e9,
             unit="ns")
        emit(name="neg.fork_100_wait_100", value=median_s(lambda: fork_many(one, FORKS), 99) / FORKS
             * 1e9, unit="ns")


def measure_ensemble(form: str, train: bool, runs: int) -> None:
    """Seconds a pass of the ensemble."""
    torch.manual_seed(1)
    steps, batch, channels = 50, 50, 1024
    ensemble = torch.jit.script(Ensemble(4, channels, form))
    x = torch.randn(steps, batch, channels)

    def step() -> None:
        if not train:
            with torch.no_grad():
                ensemble(x)
            return
        ensemble.zero_grad(set_to_none=True)
        ensemble(x).square().mean().backward()

    emit(name=f"lstm.{'train' if train else 'infer'}.{form}", value=median_s(step, runs), unit="s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(2)
    measure_forks()
    for train in (False, True):
        for form in ("serial", "directions", "models"):
            measure_ensemble(form, train, options.runs)


if __name__ == "__main__":
    main()
