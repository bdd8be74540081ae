"""Launches over hosts: how soon a run begins, what a network costs a step, and campaigns of many
launches.

./dev bench cluster [--json FILE] [--rounds R] [--write-docs] [--only NAME[,NAME..]]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds. The campaigns, which
take hours, are measured only where --only names them. Needs root: hosts are namespaces with an sshd
each, and a network's rate is limited by the system's token buckets.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Result

from campaigns import CAMPAIGN_S, CAMPAIGNS
from figures import figure_row, figure_table, kinds_main, say_figure
from hosts import Hosts

RATE = "10gbit"
FAR_GBITS, FAR_MS = "1", "20"
RUN_S = 120.0
PATIENT_JOIN = "join_timeout = 60\n"
# So small that its steps and its building are nothing beside a launch.
TINY = ('[model]\nname = "resnet18"\n[data]\nsource = "synthetic:3x16x16:10:64"\n'
        '[train]\nbatch_size = 8\nsteps = 2\neval = false\n')
LAYERS = 32
DEEP = (f'[transformer]\nlayers = {LAYERS}\nwidth = 16\nheads = 2\ncontext = 16\n'
        'tied = false\n'
        '[train]\nbatch_size = 4\nsteps = 2\neval = false\n')
REAL = ('[model]\nname = "resnet50"\n[data]\nsource = "synthetic:3x64x64:10:320"\n'
        '[train]\nbatch_size = 32\nsteps = 8\neval = false\n')
PIPELINE = "[pipeline]\nstages = {stages}\nmicro_batches = 4\nthreads_per_stage = 1\n"


class Launch:
    """One run, with its lines of JSON as they come."""

    def __init__(self, command: list[str], text: str, folder: Path) -> None:
        self.steps = folder / "steps.json"
        self.file = folder / "run.toml"
        self.file.write_text(text)
        self.log = folder / "log"
        self.command = [*command, "--json", str(self.steps)]

    def run(self) -> tuple[float, list[float]]:
        """Seconds until the first step had ended, and of each step."""
        began = time.monotonic()
        first = None
        with self.log.open("wb") as log:
            child = subprocess.Popen(self.command, stdout=log, stderr=log)
            while child.poll() is None:
                if first is None and self.steps.exists() and self.steps.stat().st_size:
                    first = time.monotonic() - began
                if time.monotonic() - began > RUN_S:
                    child.terminate()
                time.sleep(0.005)
        lines = harness.json_lines(self.steps.read_text() if self.steps.exists() else "")
        seconds = [line["seconds"] for line in lines if "step" in line and "seconds" in line]
        if child.returncode or not seconds or first is None:
            raise harness.Failure(harness.tail(self.log.read_text(errors="replace")))
        return first, seconds


def program(name: str) -> str:
    """A program of the build."""
    return str(harness.require_program(name))


def cluster_table(way: str, app: str, more: str = "") -> str:
    """The beginning of a config."""
    return f'[cluster]\nlaunch = "{way}"\nprogram = "{program(app)}"\n{PATIENT_JOIN}{more}'


def node_tables(places: list[tuple[str, str]]) -> str:
    """Nodes by name and host."""
    return "".join(f'[[node]]\nname = "{name}"\n' + (f'host = "{host}"\n' if host else "") +
                   "cores = 1\n" for name, host in places)


def over_ssh(hosts: Hosts, more: str = "") -> str:
    """A cluster of these hosts."""
    table = cluster_table("ssh", "resnet_pipeline",
                          f'ssh_options = ["-F", "{hosts.ssh_config}"]\n')
    return table + node_tables([(host.name, host.address) for host in hosts.hosts[1:]]) + more


def measure_plain(folder: Path) -> None:
    """No launch: two stage processes of this machine, which the trainer starts."""
    file = folder / "run.toml"
    first, _ = Launch([program("resnet_pipeline"), "--config", str(file)],
                      PIPELINE.format(stages=2) + TINY, folder).run()
    say_figure("first_step", first, "s")


def measure_ssh(folder: Path) -> None:
    """Two hosts over ssh, and what ssh itself takes there."""
    with Hosts(["alpha", "beta"]) as hosts:
        bare = []
        for _ in range(3):
            began = time.monotonic()
            subprocess.run(hosts.home.inside(["ssh", "-F", str(hosts.ssh_config),
                                              hosts.hosts[1].address, "true"]), check=True)
            bare.append(time.monotonic() - began)
        say_figure("ssh", statistics.median(bare), "s")
        launch = hosts.home.inside([program("troupe"), "launch", str(folder / "run.toml"), "--"])
        first, _ = Launch(launch, over_ssh(hosts) + PIPELINE.format(stages=2) + TINY, folder).run()
        say_figure("first_step", first, "s")


def measure_many(folder: Path) -> None:
    """As many nodes of this machine as a small transformer has layers."""
    table = cluster_table("local", "transformer_pipeline")
    nodes = node_tables([(f"node-{number}", "") for number in range(LAYERS)])
    launch = [program("troupe"), "launch", str(folder / "run.toml"), "--"]
    first, _ = Launch(launch, table + nodes + PIPELINE.format(stages=LAYERS) + DEEP, folder).run()
    say_figure("first_step", first, "s")


def measure_here(folder: Path) -> None:
    """A real step over shared memory."""
    file = folder / "run.toml"
    _, steps = Launch([program("resnet_pipeline"), "--config", str(file)],
                      PIPELINE.format(stages=2) + REAL, folder).run()
    say_figure("step", statistics.median(steps[1:]), "s")


def measure_over(network: str) -> Callable[[Path], None]:
    """The same step over two hosts with a limited network between them."""
    def measure(folder: Path) -> None:
        with Hosts(["alpha", "beta"], RATE) as hosts:
            launch = hosts.home.inside(
                [program("troupe"), "launch", str(folder / "run.toml"), "--"])
            link = f'[link]\ntransport = "tcp"\nnetwork = "{network}"\n'
            text = over_ssh(hosts) + link + PIPELINE.format(stages=2) + REAL
            _, steps = Launch(launch, text, folder).run()
            say_figure("step", statistics.median(steps[1:]), "s")
    return measure


def predicted_far(folder: Path) -> float:
    """Seconds of that step over the long network, as `troupe plan` predicts them from a profile."""
    file, profile = folder / "run.toml", folder / "profile.toml"
    file.write_text(PIPELINE.format(stages=2) + REAL)
    for command in (
            [program("resnet_pipeline"), "--config", str(file), "--link", "tcp",
             "--save-profile", str(profile), "--profile-only"],
            [program("troupe"), "plan", "--profile", str(profile), "--stages", "2",
             "--micro-batches", "4", "--partition", "even", "--network-gbits", FAR_GBITS,
             "--network-ms", FAR_MS]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        if done.returncode:
            raise harness.Failure(done.stderr)
    said = re.search(r"^predicted: ([0-9.]+) s a step", done.stdout, re.MULTILINE)
    if not said:
        raise harness.Failure(done.stdout)
    return float(said.group(1))


def measure_far(folder: Path) -> None:
    """The same step over a long, slow network, and what was predicted."""
    say_figure("predicted", predicted_far(folder), "s")
    with Hosts(["alpha", "beta"], cable=["--gbits", FAR_GBITS, "--ms", FAR_MS]) as hosts:
        launch = hosts.home.inside([program("troupe"), "launch", str(folder / "run.toml"), "--"])
        text = over_ssh(hosts) + '[link]\ntransport = "tcp"\n' + PIPELINE.format(stages=2) + REAL
        _, steps = Launch(launch, text, folder).run()
        say_figure("step", statistics.median(steps[1:]), "s")


def measure_link(_: Path) -> None:
    """A sealed link between two hosts with a limited network between them."""
    with Hosts(["alpha", "beta"], RATE) as hosts:
        alpha, beta = hosts.hosts[1:]
        bench = program("link_bench")
        server = subprocess.Popen(alpha.inside([bench, "--listen", f"{alpha.address}:0"]),
                                  stdout=subprocess.PIPE, text=True)
        where = server.stdout.readline().strip()
        done = subprocess.run(beta.inside([bench, "--to", where, "--mebibytes", "8", "--json"]),
                              capture_output=True, text=True, timeout=RUN_S, check=False)
        if done.returncode:
            raise harness.Failure(done.stderr)
        for line in harness.json_lines(done.stdout):
            say_figure(line["name"].removeprefix("tcp."), line["value"], line["unit"])


KINDS: dict[str, Callable[[Path], None]] = {
    "start.no_launch": measure_plain, "start.two_hosts_ssh": measure_ssh,
    "start.32_local_nodes": measure_many, "step.shared_memory": measure_here,
    "step.sealed_10_gbit": measure_over("sealed"), "step.trusted_10_gbit": measure_over("trusted"),
    "step.sealed_1_gbit_20_ms": measure_far,
    "link.sealed_10_gbit": measure_link}
ROWS = [("start.no_launch", "first_step"), ("start.two_hosts_ssh", "ssh"),
        ("start.two_hosts_ssh", "first_step"), ("start.32_local_nodes", "first_step"),
        ("step.shared_memory", "step"), ("step.sealed_10_gbit", "step"),
        ("step.trusted_10_gbit", "step"), ("step.sealed_1_gbit_20_ms", "predicted"),
        ("step.sealed_1_gbit_20_ms", "step"), ("link.sealed_10_gbit", "rtt_8B_p50"),
        ("link.sealed_10_gbit", "tensor_8MiB_rate")]


def rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One row a figure."""
    by_name = {result.contender.name: result for result in results}
    out = []
    for name, figure in ROWS:
        result = by_name.get(name)
        if result is None or result.median(figure) is None:
            continue
        out.append(figure_row(result, figure))
    header, campaigns = figure_table([by_name[name] for name in CAMPAIGNS if name in by_name])
    return header, out + campaigns


def more_or_less(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else 'less'}"


def remark(results: list[Result]) -> str:
    """What the figures come to."""
    median = {(result.contender.name, figure): result.median(figure)
              for result in results for figure in result.figures()}
    out = []
    launched, ssh, plain = (median.get(key) for key in (
        ("start.two_hosts_ssh", "first_step"), ("start.two_hosts_ssh", "ssh"),
        ("start.no_launch", "first_step")))
    if launched and ssh and plain:
        out.append(f"A launch over two hosts takes {launched - ssh - plain:.2f} s beyond ssh's own "
                   "time and what the run takes without a launch.")
    here = median.get(("step.shared_memory", "step"))
    for network in ("sealed", "trusted"):
        there = median.get((f"step.{network}_10_gbit", "step"))
        if here and there:
            out.append(f"A step over two hosts ({network}, 10 Gbit/s) takes "
                       f"{more_or_less(there / here)} time than one over shared memory.")
    far, said = (median.get(("step.sealed_1_gbit_20_ms", figure)) for figure in (
        "step", "predicted"))
    if far and said:
        out.append(f"At 1 Gbit/s and 20 ms it takes {more_or_less(far / said)} time than "
                   "`troupe plan` predicts.")
    peaks = {figure.removesuffix(".peak"): value for (kind, figure), value in median.items()
             if kind == "memory.decoder" and figure.endswith(".peak")}
    if peaks:
        off = [value / median[("memory.decoder", f"{name}.predicted")]
               for name, value in peaks.items()]
        out.append(f"The peaks of the decoder's processes are {min(off):.2f} to {max(off):.2f} "
                   "times what `check` predicts and the program takes.")
    return " ".join(out)


def main() -> int:
    return kinds_main(__file__, __doc__, KINDS, 3, 2 * RUN_S, rows, remark, CAMPAIGNS,
                      2 * CAMPAIGN_S)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
