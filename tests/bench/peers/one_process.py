"""Peer: the whole model in one process, gradients accumulated over the micro-batches."""

from __future__ import annotations

import time

import torch
from common import batch, emit_process, emit_step, layout, parse, set_threads, share_of_loss, stages
from torch import nn


def main() -> None:
    options = parse(__doc__, threads=2)
    set_threads(options)
    model = nn.Sequential(*stages(options)).to(memory_format=layout(options))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for step in range(1, options.steps + 1):
        images, targets = batch(options, step)
        started = time.perf_counter()
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(images.chunk(options.micro_batches), targets.chunk(options.micro_batches)):
            loss = share_of_loss(options, model(x), y)
            loss.backward()
            total += loss.item()
        optimizer.step()
        emit_step(step, started, total)
    emit_process("whole model")


if __name__ == "__main__":
    main()
