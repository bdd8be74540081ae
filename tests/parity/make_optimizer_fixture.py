"""Writes fixtures/optimizers.txt: where 100 steps of each optimizer lead, in torch.optim or, for qhm,
lion and lamb, in a reference of a few lines made from the paper. And fixtures/NAME_state.safetensors:
the state_dict of sgd, adam and adamw after three steps, flattened as optimizers/training/saved_state.hpp says.

usage: .venv-peers/bin/python tests/parity/make_optimizer_fixture.py

Parameters and gradients come from a generator that the tests have too (class numbers), so only
results are kept, as weighted sums and two elements:
  case OPTIMIZER DTYPE GRADIENTS OPTION=VALUE..
  param INDEX FIRST LAST SUM | slot NAME INDEX SUM
GRADIENTS: "dense", or "gaps" (a quarter of the elements 0, parameters without a gradient now and
then, one of them at first).
"""

import math
import pathlib

import torch
from safetensors.torch import save_file

SHAPES = [(37,), (5, 8), (3, 2, 2, 2)]
STEPS = 100
DTYPES = {"f32": torch.float32, "f64": torch.float64}
FIXTURES = pathlib.Path(__file__).with_name("fixtures")


class Numbers:
    """Knuth's MMIX generator: the top 24 bits as a number from -1 to below 1, exact in f32."""

    def __init__(self, seed):
        self.state = seed

    def draw(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 40) / 2**23 - 1

    def tensor(self, shape, gaps=False):
        values = [self.draw() for _ in range(math.prod(shape))]
        if gaps:
            values = [0.0 if value < -0.5 else value for value in values]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)


def missing(step, param):
    return (step + 2 * param) % 5 == 1


class Reference(torch.optim.Optimizer):
    """An optimizer that is one function of (param, gradient, state, group)."""

    def __init__(self, params, rule, **options):
        self.rule = rule
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.rule(param, param.grad.clone(), self.state[param], group)


def qhm(x, g, state, o):
    """Ma and Yarats 2019, algorithm QHM: buffer <- beta buffer + (1 - beta) g;
    x <- x - lr ((1 - nu) g + nu buffer)."""
    if o["weight_decay_type"] == "grad":
        g = g + o["weight_decay"] * x
    else:
        x.mul_(1 - o["lr"] * o["weight_decay"])
    buffer = state.setdefault("momentum_buffer", torch.zeros_like(x))
    buffer.copy_(o["momentum"] * buffer + (1 - o["momentum"]) * g)
    x.sub_(o["lr"] * ((1 - o["nu"]) * g + o["nu"] * buffer))


def lion(x, g, state, o):
    """Chen et al. 2023, algorithm 2."""
    g = -g if o["maximize"] else g
    average = state.setdefault("exp_avg", torch.zeros_like(x))
    update = torch.sign(o["beta1"] * average + (1 - o["beta1"]) * g)
    x.sub_(o["lr"] * (update + o["weight_decay"] * x))
    average.copy_(o["beta2"] * average + (1 - o["beta2"]) * g)


def lamb(x, g, state, o):
    """You et al. 2020, algorithm 2, with phi(z) = z."""
    g = -g if o["maximize"] else g
    m = state.setdefault("exp_avg", torch.zeros_like(x))
    v = state.setdefault("exp_avg_sq", torch.zeros_like(x))
    t = state["step"] = state.get("step", 0) + 1
    m.copy_(o["beta1"] * m + (1 - o["beta1"]) * g)
    v.copy_(o["beta2"] * v + (1 - o["beta2"]) * g * g)
    r = (m / (1 - o["beta1"]**t)) / ((v / (1 - o["beta2"]**t)).sqrt() + o["eps"])
    r = r + o["weight_decay"] * x
    ratio = x.norm() / r.norm() if x.norm() > 0 and r.norm() > 0 else 1.0
    x.sub_(o["lr"] * ratio * r)


class Muon:
    """torch.optim.Muon for matrices, torch.optim.AdamW for what it refuses."""

    def __init__(self, params, adamw_lr_ratio=1.0, orthogonal=1, adjust_lr="original", beta1=0.9,
                 beta2=0.999, adamw_eps=1e-8, lr=1e-3, weight_decay=0.1, **options):
        flat = [p for p in params if p.dim() != 2 or not orthogonal]
        matrices = [p for p in params if p.dim() == 2 and orthogonal]
        self.parts = [torch.optim.AdamW(flat, lr=lr * adamw_lr_ratio, betas=(beta1, beta2),
                                        eps=adamw_eps, weight_decay=weight_decay)]
        if matrices:
            self.parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay,
                                               adjust_lr_fn=adjust_lr, **options))

    def step(self):
        for part in self.parts:
            part.step()

    @property
    def state(self):
        return {param: state for part in self.parts for param, state in part.state.items()}


def named(cls):
    """Our names for options to torch's."""
    def make(params, **o):
        if "beta1" in o or "beta2" in o:
            o["betas"] = (o.pop("beta1", 0.9), o.pop("beta2", 0.999))
        if "etaminus" in o:
            o["etas"] = (o.pop("etaminus"), o.pop("etaplus"))
        if "step_min" in o:
            o["step_sizes"] = (o.pop("step_min"), o.pop("step_max"))
        return cls(params, foreach=False, **o)
    return make


def reference(rule, **defaults):
    return lambda params, **options: Reference(params, rule, **(defaults | options))


MAKE = {
    "sgd": named(torch.optim.SGD), "adam": named(torch.optim.Adam),
    "adamw": named(torch.optim.AdamW), "adagrad": named(torch.optim.Adagrad),
    "adadelta": named(torch.optim.Adadelta), "rmsprop": named(torch.optim.RMSprop),
    "rprop": named(torch.optim.Rprop), "adamax": named(torch.optim.Adamax),
    "radam": named(torch.optim.RAdam), "nadam": named(torch.optim.NAdam), "muon": Muon,
    "qhm": reference(qhm, lr=1e-3, momentum=0.9, nu=0.7, weight_decay=0.0,
                     weight_decay_type="grad"),
    "lion": reference(lion, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0, maximize=False),
    "lamb": reference(lamb, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0,
                      maximize=False),
}

CASES = [
    ("sgd", dict(lr=0.05)),
    ("sgd", dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=1e-2)),
    ("sgd", dict(lr=0.02, momentum=0.8, nesterov=True, maximize=True)),
    ("qhm", dict(lr=0.05)),
    ("qhm", dict(lr=0.05, momentum=0.95, nu=0.3, weight_decay=0.1)),
    ("qhm", dict(lr=0.05, nu=1.0, weight_decay=0.1, weight_decay_type="direct")),
    *[(name, options) for name in ("adam", "adamw") for options in (
        dict(lr=0.01), dict(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
        dict(lr=0.01, amsgrad=True, beta2=0.9), dict(lr=0.01, maximize=True))],
    ("adagrad", dict(lr=0.05)),
    ("adagrad", dict(lr=0.05, lr_decay=0.01, weight_decay=0.1, initial_accumulator_value=0.5,
                     eps=1e-3)),
    ("adagrad", dict(maximize=True)),
    ("adadelta", dict()),
    ("adadelta", dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1, maximize=True)),
    ("rmsprop", dict(lr=0.005)),
    ("rmsprop", dict(lr=0.005, alpha=0.9, eps=1e-4, weight_decay=0.1, momentum=0.7)),
    ("rmsprop", dict(lr=0.005, centered=True, eps=1e-3)),
    ("rmsprop", dict(lr=0.005, centered=True, momentum=0.5, maximize=True, eps=1e-3)),
    ("rprop", dict(lr=0.01)),
    ("rprop", dict(lr=0.02, etaminus=0.4, etaplus=1.1, step_min=1e-3, step_max=0.1, maximize=True)),
    ("adamax", dict(lr=0.01)),
    ("adamax", dict(lr=0.01, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.1, maximize=True)),
    ("radam", dict(lr=0.01)),
    ("radam", dict(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1)),
    ("radam", dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    ("nadam", dict(lr=0.01)),
    ("nadam", dict(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1, momentum_decay=0.1)),
    ("nadam", dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    ("lion", dict(lr=0.003)),
    ("lion", dict(lr=0.003, beta1=0.8, beta2=0.9, weight_decay=0.1, maximize=True)),
    ("lamb", dict(lr=0.01)),
    ("lamb", dict(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1, maximize=True)),
    ("muon", dict(lr=0.01)),
    ("muon", dict(lr=0.01, momentum=0.8, nesterov=False, ns_steps=3, eps=1e-6, weight_decay=0.2,
                  adjust_lr="match_rms_adamw", adamw_lr_ratio=0.5, beta1=0.8, beta2=0.95,
                  adamw_eps=1e-3)),
    ("muon", dict(lr=0.01, orthogonal=0)),
]


def run(name, options, dtype, gaps, steps):
    """Parameters after so many steps, and what torch or the reference keeps."""
    torch.set_default_dtype(dtype)  # of what torch keeps beside tensors, nadam's mu_product
    numbers = Numbers(7)
    params = [numbers.tensor(shape).to(dtype).requires_grad_() for shape in SHAPES]
    optimizer = MAKE[name](params, **options)
    for step in range(1, steps + 1):
        for index, param in enumerate(params):
            gradient = numbers.tensor(param.shape, gaps).to(dtype)
            param.grad = None if gaps and missing(step, index) else gradient
        optimizer.step()
    return [param.detach() for param in params], [optimizer.state[param] for param in params]


def weighted(tensor):
    flat = tensor.double().flatten()
    return (flat * (torch.arange(flat.numel()) % 7 + 1)).sum().item()


def text(values, dtype):
    return " ".join(f"{value:.{17 if dtype == 'f64' else 9}g}" for value in values)


def lines_of(name, options, dtype, gradients):
    settings = "".join(f" {key}={value if isinstance(value, str) else repr(float(value))}"
                       for key, value in options.items())
    params, states = run(name, options, DTYPES[dtype], gradients == "gaps", STEPS)
    yield f"case {name} {dtype} {gradients}{settings}"
    for index, param in enumerate(params):
        flat = param.flatten()
        yield f"param {index} {text([flat[0], flat[-1], weighted(param)], dtype)}"
    for index, state in enumerate(states):
        for slot, kept in state.items():
            if torch.is_tensor(kept) and kept.dim() > 0:
                yield f"slot {slot} {index} {text([weighted(kept)], dtype)}"


def save_state(name, options):
    """The state after three steps, the parameters then, and those after five."""
    params, states = run(name, options, torch.float32, True, 3)
    tensors = {f"param.{index}": param for index, param in enumerate(params)}
    for index, state in enumerate(states):
        for slot, kept in state.items():
            if kept is not None:
                tensors[f"state.{index}.{slot}"] = kept.float().clone()
    later, _ = run(name, options, torch.float32, True, 5)
    tensors |= {f"later.{index}": param.contiguous() for index, param in enumerate(later)}
    save_file(tensors, FIXTURES / f"{name}_state.safetensors")


def main():
    version = torch.__version__.split("+")[0]
    lines = [f"# Made by tests/parity/make_optimizer_fixture.py with torch {version}."]
    for name, options in CASES:
        for dtype in DTYPES:
            for gradients in ("dense", "gaps"):
                lines += lines_of(name, options, dtype, gradients)
    path = FIXTURES / "optimizers.txt"
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} lines, {path.stat().st_size} bytes")
    save_state("sgd", dict(lr=0.05, momentum=0.9))
    save_state("adam", dict(lr=0.01, amsgrad=True))
    save_state("adamw", dict(lr=0.01))


if __name__ == "__main__":
    main()
