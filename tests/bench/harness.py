"""The one way to measure: contenders run in turn, round after round, and medians are compared.

A benchmark names its contenders (a command line and a function that reads one run's figures),
hands them to `interleave`, and turns the results into a table, JSON figures and a section of
docs/benchmarks.md. Standard library only. Times are seconds, sizes bytes, unless a name says else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs" / "benchmarks.md"
PEER_PYTHON = REPO / ".venv-peers" / "bin" / "python"
PEERS = REPO / "tests" / "bench" / "peers"

SAMPLE_INTERVAL_S = 0.25
EXIT_GRACE_S = 3.0
STDERR_LINES = 12
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_THREAD_VARIABLES = re.compile(r"(OMP|GOMP|KMP|MKL|OPENBLAS)_|LD_PRELOAD$|(RANK|WORLD_SIZE)$")


class Failure(Exception):
    """A contender gave no figures; the text says why."""


class Missing(Exception):
    """Something must be built or installed first; the text says how."""


# ---------------------------------------------------------------- processes, through /proc


@dataclass(frozen=True)
class Process:
    """One process at one moment. `cpu_s` includes children it has waited for."""

    pid: int
    parent: int
    session: int
    name: str
    ended: bool  # a zombie: only its exit code is left
    cpu_s: float


def parse_stat(text: str) -> Process:
    """Reads a line of /proc/PID/stat; the name may hold spaces and parentheses."""
    pid, rest = text.split(" (", 1)
    name, rest = rest.rsplit(") ", 1)
    fields = rest.split()
    ticks = sum(int(fields[index]) for index in (11, 12, 13, 14))
    ended = fields[0] in "ZX"
    return Process(int(pid), int(fields[1]), int(fields[3]), name, ended, ticks / _CLOCK_TICKS)


def all_processes() -> dict[int, Process]:
    """Every process of this machine that can be read."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                process = parse_stat(Path(entry.path, "stat").read_text(errors="replace"))
                found[process.pid] = process
    return found


def process_tree(root: int) -> list[Process]:
    """`root`, its descendants, and orphans of theirs that stayed in the session `root` leads."""
    known = all_processes()

    def belongs(process: Process | None) -> bool:
        while process is not None:
            if root in (process.pid, process.session):
                return True
            process = known.get(process.parent)
        return False

    return [process for process in known.values() if belongs(process)]


def node_name(pid: int) -> str:
    """The name of a node's process in its run; empty: it is none, or has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[words.index(b"--node-name") + 1].decode() if b"--node-name" in words else ""


def cpu_seconds_over(root: int, interval_s: float) -> float:
    """CPU seconds that the process tree of `root` uses in the next `interval_s` seconds.

    Two idle processes should use next to none: this is the check that nothing burns a core.
    """
    before = sum(process.cpu_s for process in process_tree(root))
    time.sleep(interval_s)
    return sum(process.cpu_s for process in process_tree(root)) - before


@contextlib.contextmanager
def killed_after(child: subprocess.Popen, limit_s: float) -> Iterator[None]:
    """Kills a child after so long, unless this is left before."""
    end = threading.Timer(limit_s, child.kill)
    end.start()
    try:
        yield
    finally:
        end.cancel()


def await_joined(run: subprocess.Popen, stages: int) -> None:
    """Reads what a run says (--verbose) until all stages have joined. Raises Failure if it ends."""
    waiting, said = {f"stage-{number}" for number in range(stages)}, []
    for line in run.stderr:
        said.append(line)
        if found := re.search(r"(stage-\d+): process \d+ has joined ", line):
            waiting.discard(found.group(1))
        if not waiting:
            return
    raise Failure(tail("".join(said)) or "the run has not begun")


def peak_rss_bytes(pid: int) -> int:
    """The most memory a process has had resident, shared pages included; 0 once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Run:
    """What one run of a command left behind. `scratch` is removed once it has been read."""

    stdout: str
    scratch: Path
    wall_s: float
    cpu_s: float                  # of all its processes
    peak_rss_bytes: dict[int, int]  # pid -> bytes, sampled a few times a second

    def json_lines(self) -> list[dict]:
        """The JSON objects on stdout, one a line."""
        return json_lines(self.stdout)


def json_lines(text: str) -> list[dict]:
    """The JSON objects of a text; other lines are skipped."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def tail(text: str, lines: int = STDERR_LINES) -> str:
    """The last lines that say something."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def clean_environment(scratch: Path) -> dict[str, str]:
    """This environment without thread settings, so that each contender sets its own."""
    kept = {key: value for key, value in os.environ.items() if not _THREAD_VARIABLES.match(key)}
    return kept | {"TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"}


def run(command: Sequence[str], scratch: Path, timeout_s: float) -> Run:
    """Runs a command to its end in a session of its own; raises Failure unless it ends well.

    `{scratch}` in an argument stands for the folder of this run. Whatever happens, Ctrl-C
    included, no process of the command is left when this returns.
    """
    command = [argument.replace("{scratch}", str(scratch)) for argument in command]
    out, err = scratch / "stdout", scratch / "stderr"
    started = time.monotonic()
    peaks: dict[int, int] = {}
    with out.open("wb") as stdout, err.open("wb") as stderr, \
            session(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=REPO,
                    env=clean_environment(scratch)) as child:
        cpu_s = _await(child, peaks, started + timeout_s)
        wall_s = time.monotonic() - started
        left = _await_session(child.pid)
    problem = _problem(child.returncode, cpu_s, timeout_s, left)
    if problem:
        said = tail(err.read_text(errors="replace")) or "(nothing on stderr)"
        raise Failure(f"{problem}\n{said}")
    return Run(out.read_text(errors="replace"), scratch, wall_s, cpu_s, peaks)


@contextlib.contextmanager
def session(command: list[str], **how: object) -> Iterator[subprocess.Popen]:
    """A child with a session of its own, of which nothing is left at the end. An interrupt waits
    until the child is known here: in the middle of its start nobody would end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    let_through = functools.partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    with contextlib.ExitStack() as ending:
        ending.callback(let_through)
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=let_through, **how)
        ending.callback(_kill_session, child)
        let_through()
        yield child


def _await(child: subprocess.Popen, peaks: dict[int, int], deadline: float) -> float | None:
    """Waits for the child and samples memory meanwhile. CPU seconds, or None at the deadline."""
    handle = os.pidfd_open(child.pid)
    try:
        while time.monotonic() < deadline:
            if select.select([handle], [], [], SAMPLE_INTERVAL_S)[0]:
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            for process in process_tree(child.pid):
                peaks[process.pid] = max(peaks.get(process.pid, 0), peak_rss_bytes(process.pid))
        return None
    finally:
        os.close(handle)


def _await_session(session: int) -> list[str]:
    """Gives the rest of a session a moment to end; the names of what is still there after it."""
    deadline = time.monotonic() + EXIT_GRACE_S
    while (left := _session_members(session)) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(left[0].pid)
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            os.close(handle)
    return [process.name for process in left]


def _session_members(session: int) -> list[Process]:
    return [process for process in all_processes().values()
            if process.session == session and not process.ended]


def _kill_session(child: subprocess.Popen) -> None:
    """Ends what is left of a child's tree: asks first, then kills."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        members = process_tree(child.pid)
        for process in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if not members:
            return
        if child.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(EXIT_GRACE_S)
        _await_session(child.pid)


def _problem(code: int | None, cpu_s: float | None, timeout_s: float, left: list[str]) -> str:
    if cpu_s is None:
        return f"did not end within {timeout_s:g} s"
    if code:
        return f"ended with exit code {code}" if code > 0 else f"ended by signal {-code}"
    return f"left processes behind: {', '.join(left)}" if left else ""


# ---------------------------------------------------------------- contenders in turn

Reading = dict[str, float]  # figure -> value of one run, such as {"step_s": 3.1}


@dataclass(frozen=True)
class Contender:
    """One thing that is measured: how to start it and how to read a run of it."""

    name: str  # unique, dotted: "troupe.1f1b.mb4"
    command: Sequence[str]
    read: Callable[[Run], Reading]


@dataclass
class Result:
    """What a contender did in all rounds."""

    contender: Contender
    readings: list[Reading] = field(default_factory=list)
    failure: str = ""

    def runs(self, figure: str) -> list[float]:
        """The figure's value of each run that has it."""
        return [reading[figure] for reading in self.readings if figure in reading]

    def median(self, figure: str) -> float | None:
        """The median over the rounds; None when no run has the figure."""
        return median(self.runs(figure))

    def figures(self) -> list[str]:
        """The names of all figures, in the order they were first seen."""
        return list(dict.fromkeys(name for reading in self.readings for name in reading))


def median(values: Iterable[float]) -> float | None:
    """The median, or None of nothing."""
    listed = list(values)
    return statistics.median(listed) if listed else None


def say(text: str) -> None:
    """Tells the user on stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def interleave(contenders: Sequence[Contender], rounds: int, timeout_s: float) -> list[Result]:
    """Runs each contender once per round, in turn, so that noise falls on all alike.

    A contender that fails is reported, is not run again, and does not stop the others.
    """
    results = [Result(contender) for contender in contenders]
    for number in range(1, rounds + 1):
        for place, result in enumerate(results, start=1):
            if not result.failure:
                say(f"round {number}/{rounds}  {place}/{len(results)}  {result.contender.name}")
                _run_once(result, timeout_s)
    return results


def _run_once(result: Result, timeout_s: float) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="troupe-bench-"))
    try:
        reading = result.contender.read(run(result.contender.command, scratch, timeout_s))
        if not reading:
            raise Failure("printed no figures")
        result.readings.append(reading)
    except (Failure, OSError, LookupError, TypeError, ValueError) as problem:
        plain = isinstance(problem, (Failure, OSError))
        result.failure = str(problem) if plain else f"unreadable output: {problem!r}"
        say(f"FAILED {result.contender.name}: {result.failure}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def best(results: Iterable[Result], figure: str) -> Result | None:
    """The result with the lowest median of a figure."""
    measured = [result for result in results if result.median(figure) is not None]
    return min(measured, key=lambda result: result.median(figure), default=None)


# ---------------------------------------------------------------- figures, tables, documents


@dataclass(frozen=True)
class Figure:
    """One measured number, and what it is compared with. `ratio` is value / peer_value."""

    name: str
    value: float
    unit: str
    runs: list[float]
    peer: str | None = None
    peer_value: float | None = None

    def to_json(self) -> str:
        """One JSON line."""
        ratio = self.value / self.peer_value if self.peer_value else None
        keys = ("name", "value", "unit", "peer", "peer_value", "ratio", "runs")
        return json.dumps({key: (dataclasses.asdict(self) | {"ratio": ratio})[key] for key in keys})


def figures_against(result: Result, figure: str, name: str, unit: str,
                    rivals: Sequence[tuple[Result, str]] = ()) -> list[Figure]:
    """A result's figure beside each rival's figure, or alone when no rival has any."""
    value = result.median(figure)
    if value is None:
        return []
    compared = [Figure(name, value, unit, result.runs(figure), rival.contender.name, other)
                for rival, theirs in rivals if (other := rival.median(theirs)) is not None]
    return compared or [Figure(name, value, unit, result.runs(figure))]


def write_figures(path: Path, figures: Iterable[Figure]) -> None:
    """Writes one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(figure.to_json() + "\n" for figure in figures))


Row = Sequence[str]


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?[x%]?|-|", cell))


def _numeric_columns(rows: Sequence[Row]) -> list[bool]:
    return [all(_is_number(cell) for cell in column) for column in zip(*rows)]


def table(header: Row, rows: Sequence[Row]) -> str:
    """An aligned table for a terminal: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    numeric = _numeric_columns(rows) or [False] * len(header)

    def line(cells: Row) -> str:
        placed = [cell.rjust(width) if right else cell.ljust(width)
                  for cell, width, right in zip(cells, widths, numeric)]
        return "  ".join(placed).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown_table(header: Row, rows: Sequence[Row]) -> str:
    """The same table in Markdown."""
    rule = ["---:" if right else "---" for right in _numeric_columns(rows) or [False] * len(header)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])


def number(value: float | None, digits: int = 2, suffix: str = "") -> str:
    """A cell of a table; a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}{suffix}"


def replace_section(text: str, name: str, body: str) -> str:
    """`text` with what stands between the markers of section `name` replaced by `body`."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"need one '{start}' and, after it, one '{end}'")
    before, rest = text.split(start)
    return f"{before}{start}\n{body.strip()}\n{end}{rest.split(end)[1]}"


def write_section(name: str, body: str, path: Path = DOCS) -> None:
    """Rewrites a section of the benchmarks' page."""
    try:
        text = replace_section(path.read_text(), name, body)
    except (OSError, ValueError) as problem:
        raise Missing(f"cannot write section '{name}' of {path.name}: {problem}") from problem
    path.write_text(text)


# ---------------------------------------------------------------- where it was measured


def cpu_model() -> str:
    """The CPU's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def package_version(environment: str, package: str) -> str | None:
    """The version of a package in one of the project's virtual environments."""
    found = sorted((REPO / environment).glob(f"lib/python*/site-packages/{package}-*.dist-info"))
    return found[-1].name.removeprefix(f"{package}-").removesuffix(".dist-info") if found else None


def troupe_version() -> str:
    """The commit that was measured, marked when the sources differ from it."""
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPO,
                           capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def circumstances(load_before: float) -> str:
    """Date, machine and versions of a measurement, in one line."""
    versions = [f"Troupe {troupe_version()}"]
    for label, environment, package in (("LibTorch", ".venv", "torch"),
                                        ("peers' torch", ".venv-peers", "torch"),
                                        ("torchvision", ".venv-peers", "torchvision")):
        if version := package_version(environment, package):
            versions.append(f"{label} {version}")
    date = datetime.now(timezone.utc).date().isoformat()
    return (f"{date}, {cpu_model()}, {len(os.sched_getaffinity(0))} cores, load before the start "
            f"{load_before:.1f}; {', '.join(versions)}")


def load_before_start() -> float:
    """The load average, with a warning when others use the machine."""
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"warning: other work runs on this machine (load average {load:.1f}): "
            "times mean little, trust ratios at most")
    return load


# ---------------------------------------------------------------- the command line


def require_program(name: str) -> str:
    """The path of a built program."""
    path = REPO / "build" / "release" / "bin" / name
    if not path.is_file():
        raise Missing(f"build/release/bin/{name} is missing: run ./dev build")
    return str(path)


def require_peers(benchmark: str) -> str:
    """The Python of the peers' environment."""
    if not PEER_PYTHON.is_file():
        raise Missing("the peers' environment .venv-peers is missing: "
                      f"run ./dev bench {benchmark} --peers, which installs it")
    return str(PEER_PYTHON)


def exit_code(results: Sequence[Result]) -> int:
    """Says again what failed; 1 when anything did."""
    failed = [result.contender.name for result in results if result.failure]
    if failed:
        say(f"failed: {', '.join(failed)} (reasons above)")
    return 1 if failed else 0


def guarded(main: Callable[[], int]) -> int:
    """Runs a benchmark's main; Ctrl-C and SIGTERM end it and every process it started."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        return main()
    except Missing as problem:
        say(f"bench: {problem}")
        return 2
    except KeyboardInterrupt:
        say("bench: interrupted; everything it started has been ended")
        return 130
