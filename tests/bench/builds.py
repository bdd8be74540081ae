"""Builds in an empty folder, without a compiler cache: what `./dev train` needs, everything, and
everything once more after a core's header has changed.

./dev bench builds [--base COMMIT] [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/benchmarks.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
from harness import Contender, Missing, Result

from figures import figure_table, parser_of, read_figures, report, say_figure

BUILD_S = 10_800.0
TRAIN = "resnet_pipeline"  # the target of ./dev train
CORE_HEADER = "stage_core.hpp"  # in engine/, wherever a commit has it
ROOM_BYTES = 8 << 30  # more than a build takes


def commit_called(name: str) -> str:
    """The short hash of a commit; raises Missing if there is none."""
    asked = subprocess.run(["git", "rev-parse", "--short", "--verify", "--quiet",
                            f"{name}^{{commit}}"],
                           cwd=harness.REPO, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Missing(f"--base: there is no commit '{name}'")
    return asked.stdout.strip()


def require_room() -> None:
    """Raises Missing where the folder for temporary files has too little room for a build. Each is
    removed before the next."""
    where = tempfile.gettempdir()
    free = shutil.disk_usage(where).free
    if free < ROOM_BYTES:
        raise Missing(f"a build may take {ROOM_BYTES >> 30} GiB, and {where} has {free >> 30} GiB "
                      "left: name another folder with TMPDIR")


def unpack(commit: str, folder: Path) -> None:
    """Writes the sources of a commit, and nothing else, into a new folder."""
    folder.mkdir()
    with subprocess.Popen(["git", "archive", commit], cwd=harness.REPO,
                          stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.returncode:
        raise harness.Failure(f"git archive {commit} ended with exit code {archive.returncode}")


def torch_flags() -> list[str]:
    """The flags with which CMake finds the LibTorch of this checkout."""
    found = sorted(harness.REPO.glob(".venv/lib/python3*/site-packages/torch"))
    return [f"-DTROUPE_TORCH_DIR={found[0]}"] if found else []


def children_cpu_s() -> float:
    """CPU seconds of all processes that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def call(command: list[str], folder: Path) -> None:
    """Runs a command without a compiler cache. Raises Failure with its last lines if it fails."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False,
                          env=os.environ | {"CCACHE_DISABLE": "1"})
    if done.returncode:
        raise harness.Failure(f"{' '.join(command)}:\n{harness.tail(done.stdout)}")


def change_core_header(folder: Path) -> None:
    """Adds a comment to the core's header. Raises Failure if there is no such header."""
    found = sorted((folder / "engine").rglob(CORE_HEADER))
    if not found:
        raise harness.Failure(f"there is no {CORE_HEADER} in engine/")
    with found[0].open("a") as header:
        header.write("// A comment, for a build.\n")


class Stopwatch:
    """Prints what has passed since it was made."""

    def __init__(self) -> None:
        self.began, self.cpu_before = time.monotonic(), children_cpu_s()

    def say(self, name: str) -> None:
        say_figure(name, time.monotonic() - self.began, "s")
        say_figure(f"{name}.cpu", children_cpu_s() - self.cpu_before, "s")


def measure(commit: str, scratch: Path) -> None:
    """Builds one commit in an empty folder, and prints the figures."""
    folder = scratch / "sources"
    unpack(commit, folder)
    build = ["cmake", "--build", "build/release"]
    from_nothing = Stopwatch()
    call(["cmake", "--preset", "release", *torch_flags()], folder)
    call([*build, "--target", TRAIN], folder)
    from_nothing.say("train")
    call(build, folder)
    from_nothing.say("everything")
    change_core_header(folder)
    after_a_change = Stopwatch()
    call(build, folder)
    after_a_change.say("core_header")


def contenders(commits: list[str]) -> list[Contender]:
    """One contender for each commit."""
    return [Contender(commit, [sys.executable, __file__, "--measure", commit, "{scratch}"],
                      read_figures) for commit in commits]


def remark(results: list[Result]) -> str:
    """How long the first takes beside the last, where there are two."""
    lines = []
    for figure in ("train", "everything", "core_header"):
        new, old = results[0].median(figure), results[-1].median(figure)
        if len(results) > 1 and new and old:
            lines.append(f"`{figure}` takes {new / old:.2f} of the time that it takes at "
                         f"{results[-1].contender.name}.")
    return " ".join(lines)


def main() -> int:
    parser = parser_of("builds", __doc__, 1)
    parser.add_argument("--base", metavar="COMMIT", help="build this one too, in turn")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]))
        return 0
    require_room()
    commits = [commit_called(name) for name in ("HEAD", options.base) if name]
    load = harness.load_before_start()
    results = harness.interleave(contenders(commits), options.rounds, BUILD_S)
    where = f"{harness.circumstances(load)}; {options.rounds} rounds"
    return report("builds", results, figure_table(results), remark(results), where, options)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
