"""The report of tests/gpu/run.sh: makes it, checks it, and writes docs/gpu.md from it.

report.py make --devices FILE --compared FILE --compared-exit N --tests passed|failed|none
    [--nccl FILE] [--speed FILE] [--scenarios FILE] OUT.json [--rehearsal]
report.py write-docs REPORT.json [--page PAGE.md] [--rehearsal]

A rehearsal's report is of the device of tests, and is only written into a page that is named with
--rehearsal. Exit codes of `make`: 0; 1: a test or a comparison failed; 3: no GPU can be used.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
START, END = "<!-- gpu:figures -->", "<!-- /gpu:figures -->"

# What a report may lack; docs/gpu.md says what each of them is.
BETWEEN_GPUS, BY_UCX = "NCCL between GPUs", "edges by UCX"

# Of PyTorch's ways, those that the others are divided by.
BESIDE = ("PyTorch, eager, loss read each step", "PyTorch, eager, deterministic, loss read")

# By kind, the least number of comparisons of a whole report.
COMPARED = {"optimizer ": 10, "pipeline of ": 4}
REHEARSED = {"optimizer ": 10, "pipeline of ": 1}


class Wrong(Exception):
    """The report is not what it should be."""


def make(devices: dict, compared: dict | None, compared_exit: int, passed: bool | None,
         rehearsal: bool, found: dict) -> dict:
    """The report of one run. `found`: what nccl, speed and scenarios have printed, each None where
    it did not end well."""
    runs = found.get("scenarios") or []
    has_ucx = any(one["what"] == "ucx edges" and one["passed"] for one in runs)
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rehearsal": rehearsal,
        "devices": devices,
        "tests_passed": passed,
        # Largest differences as shares of a tensor's largest entry; null: no GPU can be used.
        "parity": compared,
        "parity_exit": compared_exit,
        "not_measured": [BETWEEN_GPUS, *([] if has_ucx else [BY_UCX])],
        **found,
    }


def usable_cards(report: dict) -> list[str]:
    """"NVIDIA H200 (140.0 GiB, architecture 9.0)" """
    return [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.1f} GiB, architecture "
            f"{gpu['architecture']})" for gpu in report["devices"]["cuda"]["gpus"] if gpu["usable"]]


def check(report: dict) -> None:
    """Raises Wrong for what is missing, or cannot be so."""
    for key, kind in (("when", str), ("rehearsal", bool), ("devices", dict), ("tests_passed", (bool, type(None))),
                      ("parity_exit", int), ("not_measured", list)):
        if not isinstance(report.get(key), kind):
            raise Wrong(f"'{key}' is no {kind}")
    datetime.datetime.fromisoformat(report["when"])
    usable_cards(report)
    parity = report["parity"]
    if parity is None:
        if report["parity_exit"] == 0:
            raise Wrong("the comparison ended well and said nothing")
        return
    found = parity["largest_differences"]
    for kind, least in (REHEARSED if report["rehearsal"] else COMPARED).items():
        if sum(what.startswith(kind) for what in found) < least:
            raise Wrong(f"fewer than {least} comparisons are of '{kind.strip()}'")
    for what, one in found.items():
        if not (isinstance(one["passed"], bool) and one["apart"] >= 0):
            raise Wrong(f"'{what}' has no difference, or does not say whether it passed")
    if parity["passed"] != all(one["passed"] for one in found.values()):
        raise Wrong("'passed' is not what the comparisons say")


def exit_code(report: dict) -> int:
    """Of the whole run."""
    if report["tests_passed"] is False or report["parity_exit"] not in (0, 3):
        return 1
    if report["parity"] is None:
        return 3
    is_whole = report["speed"] and report["scenarios"] and (report["nccl"] or report["rehearsal"])
    return 0 if is_whole and all(one["passed"] for one in report["scenarios"]) else 1


def speed_lines(speed: dict) -> list[str]:
    """Steps beside PyTorch's: medians of the runs, and the ratios to PyTorch's that reads the loss
    each step, as Troupe does."""
    lines = ["| trained | how | ms a step | least | of PyTorch's | deterministic | peak GiB | "
             "predicted |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    seconds = {(row["model"], row["what"]): row["seconds"] for row in speed["rows"]}
    for row in speed["rows"]:
        beside = [seconds.get((row["model"], what)) for what in BESIDE]
        ratios = " | ".join(f"{row['seconds'] / each:.3f}" if each else "-" for each in beside)
        peak, predicted = (f"{size / 2**30:.2f}" if (size := row.get(key, 0)) else "-"
                           for key in ("peak_bytes", "predicted_bytes"))
        lines.append(f"| {row['model']}, batch {row['batch']} | {row['what']} | "
                     f"{1000 * row['seconds']:.2f} | {1000 * row['least']:.2f} | {ratios} | "
                     f"{peak} | {predicted} |")
    if speed["growth"]:
        lines += ["", f"In {speed['growth']['steps']:,} steps of ResNet-50 (batch 32) LibTorch's "
                  f"allocator reserved {speed['growth']['reserved_growth']:,} bytes more than after "
                  "the first."]
    return lines + host_lines(speed.get("host", []))


def host_lines(rows: list[dict]) -> list[str]:
    """The host's time for products of matrices, without that in CUDA's functions."""
    if not rows:
        return []
    lines = ["", "How many products of matrices a step has, and the host's time for one, without that in "
             "CUDA's functions (median, least):", "", "| trained | how | ms a step | addmm | us | least | mm | us | least |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        products = " | ".join(f"{each['calls']} | {each['median_us']:.0f} | {each['least_us']:.0f}"
                              for each in (row["products"]["addmm"], row["products"]["mm"]))
        lines.append(f"| {row['model']}, batch {row['batch']} | {row['what']} | "
                     f"{1000 * row['seconds']:.2f} | {products} |")
    return lines


def nccl_lines(runs: list[dict]) -> list[str]:
    """Sums between processes that share one GPU: its sockets on loopback, not its rate."""
    lines = ["| ranks on one GPU | order | largest difference from the tree's sum | 100 MB, ms | "
             "algorithm, GB/s | bus, GB/s |", "| ---: | --- | ---: | ---: | ---: | ---: |"]
    lost = ""
    for run in runs:
        words = [each.split() for each in run["said"]]
        if run.get("lose"):
            lost = max((each[0] for each in words), key=float)
            continue
        rates = " | ".join("-" if (rate := run.get(key)) is None else f"{rate:.2f}"
                           for key in ("algorithm_gb_per_s", "bus_gb_per_s"))
        lines.append(f"| {run['ranks']} | {'fast' if run['fast'] else 'ordered'} | "
                     f"{max(float(each[0]) for each in words):.2g} | "
                     f"{1000 * max(float(each[1]) for each in words):.2f} | {rates} |")
    if lost:
        lines += ["", f"A rank was killed within a sum: the other had given up {float(lost):.2f} s "
                  "after it was told."]
    return lines


def scenario_lines(scenarios: list[dict]) -> list[str]:
    """Runs of the trainers."""
    lines = ["| run | | seconds | found |", "| --- | --- | ---: | --- |"]
    for one in scenarios:
        said = " ".join(one["said"].split()).replace("|", "/")
        lines.append(f"| {one['what']} | {'passed' if one['passed'] else 'failed'} | "
                     f"{one['seconds']} | {said} |")
    return lines


def to_markdown(report: dict) -> str:
    """The section of the page."""
    check(report)
    if report["parity"] is None:
        raise Wrong("no GPU could be used, so there is nothing to write")
    cuda = report["devices"]["cuda"]
    on = "the device of tests (a rehearsal)" if report["rehearsal"] else ", ".join(
        usable_cards(report))
    tests = {True: "the tests passed", False: "the tests failed",
             None: "from a bundle, without the tests"}[report["tests_passed"]]
    driver = f", driver {cuda['driver']}" if cuda["driver"] else ""
    lines = [f"`tests/gpu/run.sh` on {report['when'][:10]}, {on}{driver}, LibTorch's CUDA "
             f"{cuda['torch_cuda'] or 'none'}: {tests}.", "",
             f"Differences between {report['parity']['device']} and the CPU, as shares of the "
             "largest entry:", "", "| compared | largest difference | |", "| --- | ---: | --- |"]
    for what, one in report["parity"]["largest_differences"].items():
        lines.append(f"| {what} | {one['apart']:.3g} | {'passed' if one['passed'] else 'failed'} |")
    for part, write in (("speed", speed_lines), ("nccl", nccl_lines),
                        ("scenarios", scenario_lines)):
        if report[part]:
            lines += ["", *write(report[part])]
    return "\n".join([*lines, "", f"Not measured: {', '.join(report['not_measured'])}."])


def write_page(report: dict, page: Path) -> None:
    """Replaces the section of the page."""
    text = page.read_text(encoding="utf-8")
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise Wrong(f"{page} needs one '{START}' and, after it, one '{END}'")
    before, rest = text.split(START)
    page.write_text(f"{before}{START}\n{to_markdown(report)}\n{END}{rest.split(END)[1]}",
                    encoding="utf-8")


def read_if_there(path: Path | None) -> str:
    """Its text; empty where a program did not come to write it."""
    return path.read_text(encoding="utf-8").strip() if path and path.exists() else ""


def run_make(args: argparse.Namespace) -> int:
    """Writes the report, says what came of it in one line, and gives the run's exit code."""
    found = {name: json.loads(text) if (text := read_if_there(getattr(args, name))) else None
             for name in ("speed", "scenarios")}
    found["nccl"] = [json.loads(line) for line in read_if_there(args.nccl).splitlines()] or None
    text = args.compared.read_text(encoding="utf-8")
    report = make(json.loads(args.devices.read_text(encoding="utf-8")),
                  json.loads(text) if text.strip() else None, args.compared_exit,
                  {"passed": True, "failed": False, "none": None}[args.tests], args.rehearsal,
                  found)
    check(report)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    on = "a rehearsal" if args.rehearsal else ", ".join(
        usable_cards(report)) or "no GPU can be used"
    print(f"{args.out}: {on}; tests {args.tests}")
    return exit_code(report)


def run_write_docs(args: argparse.Namespace) -> int:
    """Writes the page."""
    report = json.loads(args.report.read_text(encoding="utf-8"))
    if report["rehearsal"] != args.rehearsal:
        raise Wrong("a rehearsal's report is for rehearsals only" if report["rehearsal"] else
                    "this is no rehearsal's report")
    write_page(report, args.page)
    return 0


def main() -> int:
    """As the module's text says."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("--devices", type=Path, required=True)
    maker.add_argument("--compared", type=Path, required=True)
    maker.add_argument("--compared-exit", type=int, required=True)
    maker.add_argument("--tests", choices=["passed", "failed", "none"], required=True)
    for name in ("--nccl", "--speed", "--scenarios"):
        maker.add_argument(name, type=Path)
    maker.set_defaults(run=run_make)
    writer = commands.add_parser("write-docs")
    writer.add_argument("report", type=Path)
    writer.add_argument("--page", type=Path, default=PAGE)
    writer.set_defaults(run=run_write_docs)
    for each in (maker, writer):
        each.add_argument("--rehearsal", action="store_true")
    args = parser.parse_args()
    try:
        return args.run(args)
    except (OSError, ValueError, KeyError, TypeError, Wrong) as problem:
        print(f"report.py: {type(problem).__name__}: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
