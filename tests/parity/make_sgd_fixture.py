"""Writes fixtures/sgd.txt: what torch.optim.SGD does to a few small tensors, as hex floats.

usage: .venv-peers/bin/python tests/parity/make_sgd_fixture.py

Lines (elements in logical order, whatever the layout; the 4-d tensor is channels_last):
  shape PARAM DIMS | initial DTYPE PARAM VALUES | gradient DTYPE STEP PARAM VALUES (absent: missing)
  case NAME DTYPE OPTION=VALUE.. | expected NAME STEP PARAM VALUES | buffer NAME PARAM VALUES
"""

import pathlib

import torch

SHAPES = [(5,), (3, 7), (2, 3, 1, 3)]
STEPS = 4
DTYPES = {"f32": torch.float32, "f64": torch.float64}
CASES = {
    "plain": dict(lr=0.1),
    "decay": dict(lr=0.01, weight_decay=5e-4),
    "momentum": dict(lr=0.05, momentum=0.9),
    "dampened": dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=1e-3),
    "nesterov": dict(lr=0.05, momentum=0.85, nesterov=True, weight_decay=1e-4),
    "maximize": dict(lr=0.03, momentum=0.9, maximize=True, weight_decay=1e-2),
    "ascent": dict(lr=0.03, maximize=True),
}


def text(tensor):
    def number(value):
        mantissa, exponent = value.hex().split("p")
        return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + "p" + exponent

    return " ".join(number(value) for value in tensor.flatten().tolist())


def laid_out(tensor):
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def run(initial, gradients, options, foreach):
    """Parameters after each step, and the momentum buffers at the end."""
    params = [laid_out(value.clone()).requires_grad_() for value in initial]
    optimizer = torch.optim.SGD(params, foreach=foreach, **options)
    after = []
    for step in gradients:
        for param, gradient in zip(params, step):
            param.grad = None if gradient is None else laid_out(gradient.clone())
        optimizer.step()
        after.append([param.detach().clone() for param in params])
    return after, [optimizer.state[param].get("momentum_buffer") for param in params]


def same(left, right):
    flat = lambda run: [t for step in run[0] for t in step] + [b for b in run[1] if b is not None]
    return all(torch.equal(a, b) for a, b in zip(flat(left), flat(right), strict=True))


def main():
    assert torch.backends.cpu.get_cpu_capability() != "DEFAULT", "needs a CPU with FMA"
    generator = torch.Generator().manual_seed(20)
    lines = [f"# Made by tests/parity/make_sgd_fixture.py with torch {torch.__version__.split('+')[0]}."]
    lines += [f"shape {i} {','.join(map(str, shape))}" for i, shape in enumerate(SHAPES)]
    for dtype, torch_dtype in DTYPES.items():
        draw = lambda: [torch.randn(s, dtype=torch_dtype, generator=generator) for s in SHAPES]
        initial = draw()
        gradients = [draw() for _ in range(STEPS)]
        gradients[0][0] = gradients[1][1] = None
        lines += [f"initial {dtype} {i} {text(value)}" for i, value in enumerate(initial)]
        for step, values in enumerate(gradients, 1):
            lines += [f"gradient {dtype} {step} {i} {text(value)}"
                      for i, value in enumerate(values) if value is not None]
        for case, options in CASES.items():
            ran = run(initial, gradients, options, foreach=False)
            assert same(ran, run(initial, gradients, options, foreach=True)), case
            name = f"{case}-{dtype}"
            settings = " ".join(f"{key}={float(value)!r}" for key, value in options.items())
            lines.append(f"case {name} {dtype} {settings}")
            for step, values in enumerate(ran[0], 1):
                lines += [f"expected {name} {step} {i} {text(v)}" for i, v in enumerate(values)]
            lines += [f"buffer {name} {i} {text(v)}"
                      for i, v in enumerate(ran[1]) if v is not None]
    path = pathlib.Path(__file__).with_name("fixtures") / "sgd.txt"
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} lines, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
