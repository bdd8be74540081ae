"""Peer: torch.distributed.pipelining over gloo, two processes, Schedule1F1B or ScheduleGPipe."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from common import batch, emit_process, emit_step, parse, ranks, set_threads, share_of_loss, stages
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Enter(torch.autograd.Function):
    """A contiguous tensor from the wire, as channels_last; its gradient contiguous again."""

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class Leave(torch.autograd.Function):
    """The way back: pipelining refuses to send a channels_last tensor."""

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.contiguous()

    @staticmethod
    def backward(_, gradient: Tensor) -> Tensor:
        return gradient.contiguous(memory_format=torch.channels_last)


class ChannelsLast(nn.Module):
    """A stage that computes in channels_last between contiguous edges."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        y = self.stage(Enter.apply(x))
        return Leave.apply(y) if y.dim() == 4 else y


def train(options: argparse.Namespace) -> None:
    """Runs this rank's stage; the last stage has the loss and prints the steps."""
    module = stages(options)[options.rank]
    if options.memory_format == "channels_last":
        module = ChannelsLast(module)
        options.memory_format = "contiguous"  # of the images: they too are split and validated
    optimizer = torch.optim.SGD(module.parameters(), lr=options.lr)
    schedule = SCHEDULES[options.schedule](
        PipelineStage(module, options.rank, 2, torch.device("cpu")),
        options.micro_batches,
        loss_fn=lambda outputs, targets: share_of_loss(options, outputs, targets),
        scale_grads=False)
    for step in range(1, options.steps + 1):
        images, targets = batch(options, step)
        losses: list[Tensor] = []
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        if options.rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        dist.barrier()
        if losses:
            emit_step(step, started, sum(loss.item() for loss in losses))


def main() -> None:
    options = parse(__doc__, schedule="1f1b")
    if options.schedule not in SCHEDULES:
        raise SystemExit(f"--schedule {options.schedule}: use one of {', '.join(SCHEDULES)}")
    set_threads(options)
    with ranks(options, 2) as rendezvous:
        dist.init_process_group("gloo", init_method=rendezvous, rank=options.rank, world_size=2)
        train(options)
        dist.destroy_process_group()
        emit_process(f"stage {options.rank + 1}")


if __name__ == "__main__":
    main()
