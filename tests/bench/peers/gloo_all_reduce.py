"""Peer: the sum of the same bytes in two processes by gloo, through torch.distributed.

Prints one JSON object: {"name": "all_reduce", "value", "unit"}, as collective_bench names it. The
tensors are 1 MB each, in one flat tensor, which is how gloo is fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP = 3


def rank_main(rank: int, rendezvous: str, floats: int, rounds: int) -> None:
    """One of two ranks; rank 0 prints the median."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=60))
    seconds = []
    for _ in range(rounds):
        gradients = torch.full((floats,), float(rank + 1))
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(gradients)
        dist.barrier()
        seconds.append(time.perf_counter() - started)
        assert gradients[0] == 3 and gradients[-1] == 3
    if rank == 0:
        value = statistics.median(seconds[WARM_UP:]) * 1e3
        print(json.dumps({"name": "all_reduce", "value": value, "unit": "ms"}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (f"{folder}/store", options.megabytes * 250_000, options.rounds),
                 nprocs=2)


if __name__ == "__main__":
    main()
