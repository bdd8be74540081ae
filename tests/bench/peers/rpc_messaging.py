"""Peer: requests between two processes over torch.distributed.rpc (TensorPipe).

Prints one JSON object a figure: {"name", "value", "unit"}, named as messaging_bench names them.
With `--over tcp` it sends over TCP, else over what TensorPipe chooses inside a machine, which is
shared memory.
"""

from __future__ import annotations

import torch
from asking import Asking, measure
from common import parse_rank, rpc_ranks
from torch import Tensor
from torch.distributed import rpc

NAMES = ("client", "server")


def echo(number: int) -> int:
    """The server's answer to a small request."""
    return number


def count(tensor: Tensor) -> int:
    """The server's answer to a tensor."""
    return tensor.numel()


def main() -> None:
    options = parse_rank(__doc__, {"over": ""})
    with rpc_ranks(options, NAMES, threads=4, over_tcp=options.over == "tcp"):
        if options.rank == 0:
            measure(Asking(
                echo=lambda number: rpc.rpc_sync("server", echo, (number,)),
                echo_all=lambda numbers: torch.futures.wait_all(
                    [rpc.rpc_async("server", echo, (number,)) for number in numbers]),
                payload=lambda size: torch.ones(size, dtype=torch.uint8),
                count=lambda tensor: rpc.rpc_sync("server", count, (tensor,))),
                requests=4096, window=1024)


if __name__ == "__main__":
    main()
