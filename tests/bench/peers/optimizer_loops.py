"""Peer: a step of QHM, SGD with momentum and AdamW as a loop over tensors, in one thread.

Prints one JSON object a figure: {"name", "value", "unit"}, named as optimizers.py names Troupe's.
KIND is eager (Python calls each operator), script (TorchScript) or compile (torch.compile, over the
large model only: it would unroll 4,000 tensors). Its kernels stay in build/ from run to run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / "build" / "torch_inductor"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))

import torch  # noqa: E402, after the cache's place is set
from torch import Tensor  # noqa: E402


def emit(name: str, value: float, unit: str) -> None:
    print(f'{{"name": "{name}", "value": {value:.6g}, "unit": "{unit}"}}', flush=True)


def qhm(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], squares: list[Tensor],
        lr: float, step: float) -> None:
    """Ma and Yarats, 2019, as PyTorch's tutorials write it, but its buffer persists."""
    for i in range(len(params)):
        grad = grads[i].add(params[i], alpha=1e-4)
        buffers[i].mul_(0.9).add_(grad, alpha=0.1)
        params[i].add_(buffers[i], alpha=-lr * 0.7).add_(grad, alpha=-lr * 0.3)


def sgd(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], squares: list[Tensor],
        lr: float, step: float) -> None:
    """As torch.optim's functional form."""
    for i in range(len(params)):
        grad = grads[i].add(params[i], alpha=1e-4)
        buffers[i].mul_(0.9).add_(grad, alpha=1.0)
        params[i].add_(buffers[i], alpha=-lr)


def adamw(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], squares: list[Tensor],
          lr: float, step: float) -> None:
    """As torch.optim's functional form."""
    for i in range(len(params)):
        params[i].mul_(1 - lr * 1e-2)
        buffers[i].lerp_(grads[i], 0.1)
        squares[i].mul_(0.999).addcmul_(grads[i], grads[i], value=0.001)
        correction1 = 1 - 0.9**step
        correction2 = 1 - 0.999**step
        denominator = (squares[i].sqrt() / correction2**0.5).add_(1e-8)
        params[i].addcdiv_(buffers[i], denominator, value=-lr / correction1)


def median_ms(body, runs: int) -> float:
    """Median milliseconds of a call; the first three, which may compile, are not counted."""
    seconds = []
    for _ in range(runs + 3):
        started = time.perf_counter()
        body()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[3:]) * 1e3


def build(kind: str, rule):
    if kind == "script":
        return torch.jit.script(rule)
    return torch.compile(rule, dynamic=False) if kind == "compile" else rule


def measure(kind: str, workload: str, tensors: int, elements: int, runs: int) -> None:
    def arrays() -> list[Tensor]:
        return [torch.randn(elements) for _ in range(tensors)]

    params, grads, buffers = arrays(), arrays(), arrays()
    squares = [torch.rand(elements) for _ in range(tensors)]
    for name, rule in (("qhm", qhm), ("sgd", sgd), ("adamw", adamw)):
        step = build(kind, rule)
        # The same step each time, so that nothing is compiled again for another correction.
        body = lambda: step(params, grads, buffers, squares, 1e-3, 10.0)  # noqa: E731, B023
        emit(f"{workload}.{name}_step", median_ms(body, runs), "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["eager", "script", "compile"])
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        measure(options.kind, "160x160000", 160, 160_000, options.runs)
        if options.kind != "compile":
            measure(options.kind, "4000x1000", 4000, 1000, options.runs)


if __name__ == "__main__":
    main()
