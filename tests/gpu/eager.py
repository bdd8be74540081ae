"""Trains what card_speed trains, with PyTorch's own modules in eager mode, on one GPU.

eager.py resnet50|gpt [--micro-batches N] [--batch N] [--steps N] [--tokens N] [--read-loss]
         [--deterministic] [--trace FILE]

Prints one JSON object. The host reads the loss after each step with --read-loss, else only at the
end of the run; the time of a step then is the mean of ten in a row. With --trace, FILE has the first
timed step as torch.profiler sees it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

WARM_UP, AT_ONCE = 5, 10
TOKENS, CONTEXT, WIDTH, HEADS, BLOCKS = 50257, 1024, 768, 12, 12


class Block(nn.Module):
    """Attention and feed-forward, with norms before each."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # [N, T, W]
        samples, length, _ = x.shape
        qkv = self.qkv(self.before(x)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """GPT-2 of 124M parameters, whose scores use the embedding's weight, with so many tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        for each in self.modules():
            if isinstance(each, (nn.Linear, nn.Embedding)):
                nn.init.normal_(each.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:  # [N, T] -> [N, T, tokens]
        x = self.tokens(x) + self.positions.weight[:x.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def build(name: str, batch: int,
          tokens: int) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    """The model, its optimizer and the batch, on the GPU. More tokens than TOKENS are in no text."""
    if name == "gpt":
        model: nn.Module = Decoder(tokens).cuda()
        text = torch.randint(TOKENS, (batch, CONTEXT + 1), device="cuda")
        made = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
        return model, made, text[:, :-1].contiguous(), text[:, 1:].contiguous()
    import torchvision  # pylint: disable=import-outside-toplevel

    model = torchvision.models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224).contiguous(memory_format=torch.channels_last).cuda()
    return (model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), images,
            torch.randint(1000, (batch,), device="cuda"))


def main() -> None:
    """As the module's text says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["resnet50", "gpt"])
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--read-loss", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--trace")
    options = parser.parse_args()
    if options.deterministic:  # as engine::compute_deterministically
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    model, optimizer, inputs, labels = build(options.model, options.batch, options.tokens)
    seconds: list[float] = []
    count = options.micro_batches
    pairs = list(zip(inputs.chunk(count), labels.chunk(count)))

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device="cuda")
        for x, y in pairs:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                scores = model(x)
                loss = functional.cross_entropy(scores.flatten(0, -2), y.flatten()) / count
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    at_once = 1 if options.read_loss else AT_ONCE
    for _ in range(options.steps // at_once):
        seen = torch.profiler.profile() if options.trace and not seconds else None
        begin = time.perf_counter()
        with seen or contextlib.nullcontext():
            for _ in range(at_once):
                loss = step()
            value = loss.item()
        seconds.append((time.perf_counter() - begin) / at_once)
        if seen:
            seen.export_chrome_trace(options.trace)
    print(json.dumps({
        "model": options.model, "micro_batches": count, "batch": options.batch,
        "read_loss": options.read_loss, "loss": value, "seconds": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main()
