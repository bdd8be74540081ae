"""Memory that a GPU's convolutions use beside their inputs and outputs, as PyTorch's own modules do.

workspaces.py SAMPLES [--tf32] [--channels-last]

Prints one JSON object: of each convolution of a ResNet-18 on SAMPLES images of 3x224x224 in f32,
with deterministic algorithms, the bytes for its forward, the gradient of its input and that of its
weight. cuDNN chooses the algorithm of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models import resnet18


def shapes(samples: int) -> dict[str, tuple[nn.Conv2d, list[int]]]:
    """Each convolution that differs from those before it, by its layer's name, and its input's."""
    found: dict[str, tuple[nn.Conv2d, list[int]]] = {}
    seen = set()

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def hook(conv: nn.Module, inputs: tuple[Tensor], _: Tensor) -> None:
            shape = [samples, *inputs[0].shape[1:]]
            if (str(conv), tuple(shape)) not in seen:
                seen.add((str(conv), tuple(shape)))
                found[name] = conv, shape
        return hook

    model = resnet18()
    for name, each in model.named_modules():
        if isinstance(each, nn.Conv2d):
            each.register_forward_hook(note(name))
    model.eval()(torch.zeros(1, 3, 224, 224))
    return found


def beside(work: Callable[[], tuple[Tensor | None, ...]]) -> int:
    """The most bytes that were allocated in it, less those of its results."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = work()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    del results
    return torch.cuda.max_memory_allocated() - before - kept


def workspaces(conv: nn.Conv2d, shape: list[int], layout: torch.memory_format) -> dict[str, int]:
    """Of its three passes."""
    x = torch.randn(shape, device="cuda").contiguous(memory_format=layout)
    weight = conv.weight.detach().cuda().contiguous(memory_format=layout)
    terms = list(conv.stride), list(conv.padding), [1, 1], False, [0, 0], 1
    y = torch.ops.aten.convolution(x, weight, None, *terms)
    slope = torch.ones_like(y)

    def backward(*wanted: bool) -> tuple[Tensor | None, ...]:
        return torch.ops.aten.convolution_backward(slope, x, weight, None, *terms, list(wanted))

    return {"forward": beside(lambda: (torch.ops.aten.convolution(x, weight, None, *terms),)),
            "input gradient": beside(lambda: backward(True, False, False)),
            "weight gradient": beside(lambda: backward(False, True, False))}


def main() -> int:
    words = argparse.ArgumentParser()
    words.add_argument("samples", type=int)
    words.add_argument("--tf32", action="store_true")
    words.add_argument("--channels-last", action="store_true")
    asked = words.parse_args()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = asked.tf32
    layout = torch.channels_last if asked.channels_last else torch.contiguous_format
    print(json.dumps({name: workspaces(*each, layout)
                      for name, each in shapes(asked.samples).items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
