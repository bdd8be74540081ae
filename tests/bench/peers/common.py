"""What every peer shares: flags, the model and its cut, the batches, ranks and JSON lines.

A peer prints one JSON object a line on stdout: {"step", "seconds", "loss"} for each step, and at
its end {"process", "pid", "peak_memory_bytes", "cpu_s"} for each of its processes. Rank 0 is the
process that was started; it starts the others itself and they die with it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.distributed import rpc

LINK_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1
_RANK_FLAGS: dict[str, object] = {"threads": 1, "rank": 0, "rendezvous": ""}


def parse(description: str, **defaults: object) -> argparse.Namespace:
    """Reads the flags all peers know; `defaults` adds or overrides peer-specific ones by name."""
    parser = argparse.ArgumentParser(description=description)
    flags = {
        "model": "resnet50", "classes": 1000, "batch_size": 120, "image_size": 128,
        "micro_batches": 4, "steps": 4, "cut": "layer3", "lr": 0.05, "seed": 1,
    } | _RANK_FLAGS | defaults
    _add_flags(parser, flags)
    parser.add_argument("--memory-format", choices=["contiguous", "channels_last"],
                        default="contiguous")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    if options.batch_size % options.micro_batches:
        parser.error(f"--batch-size {options.batch_size} is not a multiple of the "
                     f"{options.micro_batches} micro-batches")
    if options.cut not in _layer_names(options)[1:]:
        parser.error(f"--cut {options.cut} does not cut {options.model} in two; its layers: "
                     f"{', '.join(_layer_names(options))}")
    return options


def parse_rank(description: str, more: dict[str, object] | None = None) -> argparse.Namespace:
    """Reads the flags of a peer that trains no model, and bounds its intra-op threads. `more`:
    flags of its own with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    _add_flags(parser, _RANK_FLAGS | (more or {}))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def _add_flags(parser: argparse.ArgumentParser, flags: dict[str, object]) -> None:
    for name, value in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)


def _layer_names(options: argparse.Namespace) -> list[str]:
    with torch.device("meta"):
        return [name for name, _ in torchvision.models.get_model(options.model).named_children()]


def layout(options: argparse.Namespace) -> torch.memory_format:
    """The memory format of weights, images and activations."""
    channels_last = options.memory_format == "channels_last"
    return torch.channels_last if channels_last else torch.contiguous_format


class Stage(nn.Sequential):
    """Layers in order, under bf16 autocast when asked for."""

    def __init__(self, layers: list[nn.Module], bf16: bool) -> None:
        super().__init__(*layers)
        self.bf16 = bf16

    def forward(self, x: Tensor) -> Tensor:  # [N, C, H, W] -> [N, C, H, W] or [N, classes]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            return super().forward(x)


def stages(options: argparse.Namespace) -> tuple[nn.Module, nn.Module]:
    """The model cut in two: the second stage begins with layer `--cut`. Same seed, same weights."""
    torch.manual_seed(options.seed)
    model = torchvision.models.get_model(options.model, weights=None, num_classes=options.classes)
    model = model.to(memory_format=layout(options))
    parts: tuple[list[nn.Module], list[nn.Module]] = ([], [])
    second = False
    for name, layer in model.named_children():
        second = second or name == options.cut
        parts[second].extend([nn.Flatten(1), layer] if name == "fc" else [layer])
    bf16 = options.precision == "bf16"
    return Stage(parts[0], bf16), Stage(parts[1], bf16)


def batch(options: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """The images and one-hot targets of a step: the same for every peer and every rank."""
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
    side = options.image_size
    images = torch.randn(options.batch_size, 3, side, side, generator=generator)
    labels = torch.randint(options.classes, (options.batch_size,), generator=generator)
    targets = nn.functional.one_hot(labels, options.classes).float()
    return images.contiguous(memory_format=layout(options)), targets


def share_of_loss(options: argparse.Namespace, outputs: Tensor, targets: Tensor) -> Tensor:
    """What these rows add to the mean squared error of the whole batch."""
    squares = nn.functional.mse_loss(outputs.float(), targets, reduction="sum")
    return squares / (options.batch_size * options.classes)


def emit(**fields: object) -> None:
    """Prints one JSON line, whole: ranks share the stream."""
    os.write(1, (json.dumps(fields) + "\n").encode())


def emit_step(step: int, started: float, loss: float) -> None:
    """Prints the line of a step that ends now."""
    emit(step=step, seconds=time.perf_counter() - started, loss=loss)


def emit_process(name: str) -> None:
    """Prints what this process used: peak resident memory and CPU seconds."""
    status = Path("/proc/self/status").read_text()
    peak_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    emit(process=name, pid=os.getpid(), peak_memory_bytes=int(peak_kib) * 1024,
         cpu_s=time.process_time())


def set_threads(options: argparse.Namespace) -> None:
    """Bounds the intra-op threads of this process."""
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)


@contextlib.contextmanager
def ranks(options: argparse.Namespace, count: int) -> Iterator[str]:
    """Yields a rendezvous URL; in rank 0 the other ranks run until the block ends.

    The rendezvous is a file and all sockets bind to loopback, so nothing listens outside.
    """
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    if options.rank:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        yield f"file://{options.rendezvous}/store"
        return
    directory = tempfile.mkdtemp(prefix="troupe-bench-")
    others = [_start_rank(rank, directory, options.threads) for rank in range(1, count)]
    watchers = [threading.Thread(target=_watch_rank, args=(rank, process, directory), daemon=True)
                for rank, process in enumerate(others, start=1)]
    for watcher in watchers:
        watcher.start()
    try:
        yield f"file://{directory}/store"
        for watcher in watchers:
            watcher.join(EXIT_TIMEOUT_S)
    finally:
        for process in others:
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def rpc_ranks(options: argparse.Namespace, names: Sequence[str], threads: int,
              over_tcp: bool = False) -> Iterator[None]:
    """As `ranks`, of these names, which call each other; so many threads answer in each. Ends when
    all calls are answered. `over_tcp`: as between machines, without the shared memory and the reads
    of each other's memory that TensorPipe uses inside one."""
    only = {"_transports": ["uv"], "_channels": ["basic"]} if over_tcp else {}
    with ranks(options, len(names)) as rendezvous:
        rpc.init_rpc(
            names[options.rank], rank=options.rank, world_size=len(names),
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                num_worker_threads=threads, rpc_timeout=LINK_TIMEOUT_S, init_method=rendezvous,
                **only))
        yield
        rpc.shutdown()


def _start_rank(rank: int, directory: str, threads: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, *sys.argv, f"--rank={rank}", f"--rendezvous={directory}"]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)})


def _watch_rank(rank: int, process: subprocess.Popen[bytes], directory: str) -> None:
    """Ends rank 0, and with it the others, when a rank fails: they would wait for it in vain."""
    code = process.wait()
    if code:
        os.write(2, f"rank {rank} ended with exit code {code}\n".encode())
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)
