"""Fork and wait, and an ensemble of LSTMs made of them, beside TorchScript's.

./dev bench fork [--peers] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import statistics
import sys

import harness
from harness import Contender, Reading, Run

from figures import Bench, Comparison, Quantity, read_figures

FORMS = ("serial", "directions", "models")
FORKS = ["fork_wait.inside", "fork_wait.outside", "fork_100_wait_100.inside",
         "fork_100_wait_100.outside", "nested_10000"]
FAMILIES = {"troupe": "Troupe", "jit": "TorchScript"}


def read_ensemble(run: Run) -> Reading:
    """The median time of one run's passes, the first left out."""
    lines = harness.json_lines((run.scratch / "runs.jsonl").read_text())
    return {"pass": Quantity(statistics.median(line["seconds"] for line in lines[1:]), "s")}


def contenders(names: list[str]) -> list[Contender]:
    """The forks, and each form of the ensemble."""
    made = [Contender("troupe.fork", [harness.require_program("fork_bench"), "--json"],
                      read_figures)]
    program = harness.require_program("lstm_ensemble")
    for mode in ("infer", "train"):
        made += [Contender(f"troupe.{mode}.{form}",
                           [program, "--form", form, "--threads", "2", "--repeat", "3", "--json",
                            "{scratch}/runs.jsonl", *(["--train"] if mode == "train" else [])],
                           read_ensemble) for form in FORMS]
    if "jit" in names:
        peer = str(harness.PEERS / "jit_fork.py")
        made.append(Contender("jit", [harness.require_peers("fork"), peer], read_figures))
    return made


def comparisons() -> list[Comparison]:
    """Troupe's figures beside the peer's, and the ensemble's forms beside the serial one."""
    forks = [Comparison(name, "troupe.fork", name) for name in FORKS]
    forks.append(Comparison("neg.fork_wait", "troupe.fork", "neg.fork_wait", "jit"))
    forks.append(
        Comparison("neg.fork_100_wait_100", "troupe.fork", "neg.fork_100_wait_100", "jit"))
    return forks + [Comparison(f"lstm.{mode}.{form}", f"troupe.{mode}.{form}", "pass", "jit")
                    for mode in ("infer", "train") for form in FORMS]


if __name__ == "__main__":
    bench = Bench("fork", __doc__, FAMILIES, contenders, comparisons,
                  "pool of two threads; ensemble of 4 models, T, B, C = 50, 50, 1024",
                  timeout_s=600.0)
    sys.exit(harness.guarded(bench.main))
