"""Weight gradients of convolutions by Troupe's kernel, shape by shape, beside oneDNN's; forward and
input gradients with copies of weights and without.

./dev bench kernels [--json FILE] [--rounds R] [--write-docs]

The protocol is in docs/kernels.md. A figure is the median over the rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness
from harness import Contender, Result

from figures import all_figures, parser_of, read_figures

PAGE = harness.REPO / "docs" / "kernels.md"
TYPES = ("fp32", "bf16")
NETWORKS = {"resnet50": 15, "resnet18": 16}  # images of a micro-batch
HEADER = ["convolution", *(f"{kind} {what}" for kind in TYPES
                           for what in ("Troupe", "oneDNN", "ratio", "of the peak"))]


COPIES = ("forward", "input gradient")
COPIES_HEADER = ["ms of a micro-batch", *(f"{what}{of}" for what in COPIES
                                          for of in ("", " with copies", " ratio"))]


def contenders() -> list[Contender]:
    """Each network in each type, a process of its own."""
    program = harness.require_program("kernels_bench")
    return [Contender(f"{network}.{kind}",
                      [program, "--json", "--network", network, "--type", kind,
                       "--images", str(images)], read_figures)
            for network, images in NETWORKS.items() for kind in TYPES]


def cells(result: Result, layer: str) -> list[str]:
    """GFLOP/s of both, the ratio of the times, and Troupe's share of the peak."""
    ours, theirs = (result.median(f"{layer} {who}") for who in ("troupe", "onednn"))
    if ours is None or theirs is None:
        return ["-"] * 4
    return [harness.number(ours, 0), harness.number(theirs, 0), harness.number(theirs / ours),
            harness.number(ours / result.median("peak"))]


def rows(results: dict[str, Result]) -> list[list[str]]:
    """Each layer, then the sum over a network in ms."""
    found = []
    for network in NETWORKS:
        of = [results[f"{network}.{kind}"] for kind in TYPES]
        layers = [name.removesuffix(" troupe") for name in of[0].figures()
                  if name.endswith(" troupe") and not name.startswith("all ")]
        found += [[f"{network} {layer}", *(cell for result in of for cell in cells(result, layer))]
                  for layer in layers]
        total = [f"{network} in all, ms"]
        for result in of:
            ours, theirs = result.median("all troupe"), result.median("all onednn")
            ratio = ours / theirs if ours and theirs else None
            total += [harness.number(ours, 0), harness.number(theirs, 0), harness.number(ratio), "-"]
        found.append(total)
    return found


def copies_rows(results: dict[str, Result]) -> list[list[str]]:
    """Each network in each type: without copies of weights, with them, and the ratio."""
    found = []
    for name, result in results.items():
        row = [name]
        for what in COPIES:
            plain, copied = (result.median(f"all {what}{of}") for of in ("", " with copies"))
            ratio = copied / plain if plain and copied else None
            row += [harness.number(plain, 1), harness.number(copied, 1), harness.number(ratio)]
        found.append(row)
    return found


def section() -> str:
    """Of the page: CPUs with AMX have one of their own, since oneDNN is another there."""
    return "kernels_amx" if " amx_bf16" in Path("/proc/cpuinfo").read_text() else "kernels"


def main() -> int:
    options = parser_of("kernels", __doc__, 3, "docs/kernels.md").parse_args()
    load = harness.load_before_start()
    results = harness.interleave(contenders(), options.rounds, 600.0)
    by_name = {result.contender.name: result for result in results}
    peaks = ", ".join(f"{harness.number(by_name[f'resnet50.{kind}'].median('peak'), 0)} in {kind}"
                      for kind in TYPES)
    where = (f"{harness.circumstances(load)}; {options.rounds} rounds. One core's peak in GFLOP/s: "
             f"{peaks}")
    table, copies = rows(by_name), copies_rows(by_name)
    print(f"{where}\n\n{harness.table(HEADER, table)}\n\n{harness.table(COPIES_HEADER, copies)}")
    if options.json:
        harness.write_figures(options.json, all_figures(results))
    if options.write_docs and not any(result.failure for result in results):
        harness.write_section(section(),
                              f"Measured {where}.\n\n{harness.markdown_table(HEADER, table)}\n\n"
                              f"{harness.markdown_table(COPIES_HEADER, copies)}", PAGE)
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(harness.guarded(main))
