"""Writes the fixtures that torchvision_parity.cpp compares Troupe's ResNets with.

Run by a person, with the Python peers' environment:

    .venv-peers/bin/python tests/parity/make_fixture.py

A fixture holds no weights that a seed reproduces. Of every large tensor it keeps a summary (see
`summary`), in float64. Everything is computed on two threads and with two images or more, where
PyTorch leaves every convolution to oneDNN as Troupe does: on the machine that made a fixture,
float32 results are reproducible to the bit.

NAME.safetensors, for NAME in resnet18, resnet50, resnext101_32x8d (only its first six layers):
  input, target, labels           what the step was given
  TYPE.output                     forward in training mode, TYPE in f32, f64
  TYPE.LOSS                       LOSS in mse, cross_entropy
  TYPE.LOSS.grad.PARAMETER        its gradients
  TYPE.buffer.BUFFER              buffers after that one forward
  TYPE.evaluated                  forward in evaluation mode after it
initial.safetensors:
  NAME.PARAMETER                  initial weights of every network
stem_weights.safetensors:         a trained resnet18's conv1 .. layer1.0, as safetensors saves it
stem.safetensors:
  input, output                   evaluation mode forward of those layers
NAME_weights.safetensors:         with --weights only: a whole trained network's state_dict
NAME_trained.safetensors:         with --weights only: its input and output in evaluation mode
"""

import argparse
import copy
import pathlib

import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

CLASSES = 10
SEED = 20
INITIAL = ("resnet18", "resnet34", "resnet50", "resnet101", "resnext101_32x8d")


def summary(tensor, samples=64):
    """Small tensors whole; of larger ones sum, sum of magnitudes, 2-norm and evenly spread samples."""
    flat = tensor.detach().double().flatten()
    if flat.numel() <= samples:
        return flat.clone()
    at = torch.arange(samples) * (flat.numel() - 1) // (samples - 1)
    return torch.cat([torch.stack([flat.sum(), flat.abs().sum(), flat.norm()]), flat[at]])


def network(name, seed=SEED):
    torch.manual_seed(seed)
    return getattr(torchvision.models, name)(num_classes=CLASSES)


def layers(net, count):
    """The first `count` layers of the list conv1, bn1, relu, maxpool, layer1.0, ..."""
    named = []
    for name, child in net.named_children():
        if name.startswith("layer"):
            named += [(f"{name}.{i}", block) for i, block in child.named_children()]
        else:
            named.append((name, child))
    return named[:count]


class Slice(nn.Module):
    def __init__(self, named):
        super().__init__()
        self.named = named
        self.parts = nn.ModuleList(module for _, module in named)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def restored(self, name):
        _, index, rest = name.split(".", 2)
        return f"{self.named[int(index)][0]}.{rest}"


def original_name(net, name):
    return net.restored(name) if isinstance(net, Slice) else name


def step(net, given, kind, losses):
    """One training forward, its losses and all their gradients."""
    x = given["input"].to(kind)
    net = copy.deepcopy(net).to(kind).train()
    output = net(x)
    made = {"output": summary(output)}
    for loss_name, loss in losses.items():
        value = loss(output, given)
        made[loss_name] = summary(value)
        grads = torch.autograd.grad(value, list(net.parameters()), retain_graph=True)
        for (name, _), grad in zip(net.named_parameters(), grads):
            made[f"{loss_name}.grad.{original_name(net, name)}"] = summary(grad)
    for name, buffer in net.named_buffers():
        made[f"buffer.{original_name(net, name)}"] = summary(buffer)
    with torch.no_grad():
        made["evaluated"] = summary(net.eval()(x))
    return made


LOSSES = {
    "mse": lambda out, given: nn.functional.mse_loss(out, given["target"].to(out.dtype)),
    "cross_entropy": lambda out, given: nn.functional.cross_entropy(out, given["labels"]),
}


def write_steps(net, given, losses, file):
    made = dict(given)
    for kind_name, kind in (("f32", torch.float32), ("f64", torch.float64)):
        for name, tensor in step(net, given, kind, losses).items():
            made[f"{kind_name}.{name}"] = tensor
    save_file(made, file)


def inputs(batch, side):
    source = torch.Generator().manual_seed(7)
    return {
        "input": torch.randn(batch, 3, side, side, generator=source),
        "target": torch.randn(batch, CLASSES, generator=source),
        "labels": torch.randint(CLASSES, (batch,), generator=source),
    }


def write_resnets(out):
    for name in ("resnet18", "resnet50"):
        write_steps(network(name), inputs(4, 64), LOSSES, out / f"{name}.safetensors")
    name = "resnext101_32x8d"
    part = Slice(layers(network(name), 6))
    given = inputs(2, 64)
    given["target"] = torch.zeros(1)
    del given["labels"]
    zero = {"mse": lambda out, _: nn.functional.mse_loss(out, torch.zeros_like(out))}
    write_steps(part, given, zero, out / f"{name}.safetensors")


def write_initial(out):
    made = {}
    for name in INITIAL:
        for parameter, value in network(name).named_parameters():
            made[f"{name}.{parameter}"] = summary(value, samples=8)
    save_file(made, out / "initial.safetensors")


def trained(name):
    """A network whose weights and running statistics no seed draws."""
    net = network(name, seed=3).train()
    given = inputs(8, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        loss = nn.functional.cross_entropy(net(given["input"]), given["labels"])
        for parameter, grad in zip(net.parameters(), torch.autograd.grad(loss, net.parameters())):
            parameter.grad = grad
        optimizer.step()
    return net.eval()


def write_stem(out):
    net = trained("resnet18")
    kept = ("conv1.", "bn1.", "layer1.0.")
    weights = {k: v.clone() for k, v in net.state_dict().items() if k.startswith(kept)}
    save_file(weights, out / "stem_weights.safetensors", metadata={"format": "pt"})
    x = inputs(2, 64)["input"]
    with torch.no_grad():
        y = Slice(layers(net, 5))(x)
    save_file({"input": x, "output": summary(y)}, out / "stem.safetensors")


def write_weights(out):
    for name in ("resnet18", "resnet50"):
        net = trained(name)
        save_file(net.state_dict(), out / f"{name}_weights.safetensors", metadata={"format": "pt"})
        x = inputs(2, 64)["input"]
        with torch.no_grad():
            save_file({"input": x, "output": summary(net(x))}, out / f"{name}_trained.safetensors")


def main():
    arguments = argparse.ArgumentParser()
    fixtures = pathlib.Path(__file__).parent / "fixtures"
    arguments.add_argument("--out", type=pathlib.Path, default=fixtures)
    arguments.add_argument("--weights", action="store_true", help="whole networks' weights too")
    given = arguments.parse_args()
    torch.set_num_threads(2)
    given.out.mkdir(parents=True, exist_ok=True)
    write_resnets(given.out)
    write_initial(given.out)
    write_stem(given.out)
    if given.weights:
        write_weights(given.out)


if __name__ == "__main__":
    main()
