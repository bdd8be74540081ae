"""Peer: a pipeline over PyTorch RPC: a master, two workers, distributed autograd and optimizer.

Each worker owns one stage behind a lock. The master sends every split as a remote reference from
stage to stage, waits for the futures of all splits, and differentiates the loss of the whole batch.
"""

from __future__ import annotations

import argparse
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
from common import (batch, emit_process, emit_step, parse, rpc_ranks, set_threads, share_of_loss,
                    stages)
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

NAMES = ("master", "stage_1", "stage_2")
RPC_THREADS = 64


class RemoteStage(nn.Module):
    """One stage on its worker. RPC threads call it; the lock lets one split through at a time."""

    def __init__(self, options: argparse.Namespace, index: int) -> None:
        super().__init__()
        self.stage = stages(options)[index]
        self.lock = threading.Lock()

    def forward(self, input_ref: rpc.RRef) -> Tensor:
        x = input_ref.to_here()
        with self.lock:
            return self.stage(x)

    def parameter_refs(self) -> list[rpc.RRef]:
        """References the distributed optimizer can hold."""
        return [rpc.RRef(parameter) for parameter in self.parameters()]


class Pipeline:
    """The master's view: two remote stages."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rows = options.batch_size // options.micro_batches
        self.first, self.second = (
            rpc.remote(NAMES[index + 1], RemoteStage, args=(options, index)) for index in (0, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Starts every split, then waits for all of them."""
        futures = []
        for split in images.split(self.rows):
            middle_ref = self.first.remote().forward(rpc.RRef(split))
            futures.append(self.second.rpc_async().forward(middle_ref))
        return torch.cat(torch.futures.wait_all(futures))

    def parameter_refs(self) -> list[rpc.RRef]:
        return [ref for stage in (self.first, self.second)
                for ref in stage.rpc_sync().parameter_refs()]


def train(options: argparse.Namespace) -> None:
    """The master's loop."""
    pipeline = Pipeline(options)
    optimizer = DistributedOptimizer(torch.optim.SGD, pipeline.parameter_refs(), lr=options.lr)
    for step in range(1, options.steps + 1):
        images, targets = batch(options, step)
        started = time.perf_counter()
        with dist_autograd.context() as context:
            loss = share_of_loss(options, pipeline.forward(images), targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        emit_step(step, started, loss.item())


def main() -> None:
    options = parse(__doc__, splits=0)
    options.micro_batches = options.splits or options.micro_batches
    set_threads(options)
    with rpc_ranks(options, NAMES, RPC_THREADS):
        if options.rank == 0:
            train(options)
    emit_process(NAMES[options.rank].replace("_", " "))


if __name__ == "__main__":
    main()
