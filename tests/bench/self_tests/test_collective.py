"""Tests of ./dev bench collective, with few bytes: test_collective.py COLLECTIVE_BENCH"""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import collective
import harness
from figures import Quantity
from harness import Result, Run

MEGABYTES = 8


def measured(contender: harness.Contender) -> Result:
    """What the program prints of a few small sums. It checks each of them."""
    command = [*contender.command, "--megabytes", str(MEGABYTES), "--rounds", "6"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return Result(contender, [contender.read(Run(said, Path(), 0.0, 0.0, {}))])


class Collective(unittest.TestCase):
    def test_all_figures_are_measured_and_a_sum_has_its_share_of_the_link(self) -> None:
        with mock.patch.object(harness, "require_program", return_value=sys.argv[1]), \
                mock.patch.object(harness, "require_peers", str):
            *ours, gloo = collective.contenders(["troupe", "gloo"])
        results = {each.name: measured(each) for each in ours}
        results[gloo.name] = Result(gloo, [{"all_reduce": Quantity(1e4, "ms")}])
        bench = collective.make_bench()
        found = {figure.name: figure for figure in bench.figures(results)}
        self.assertEqual(list(found), [row.name for row in collective.comparisons()])
        printed = {name for each in ours for name in results[each.name].figures()}
        self.assertEqual(printed, set(found))
        for link in collective.LINKS:
            ms, share = found[f"all_reduce.{link}"], found[f"all_reduce.{link}_of_link"]
            rate = found[f"link.{link}_rate"]
            self.assertEqual((ms.unit, rate.unit, share.unit), ("ms", "MB/s", "%"))
            link_ms = 2 * MEGABYTES / rate.value * 1e3
            self.assertAlmostEqual(share.value, 100 * link_ms / ms.value, delta=share.value / 1e3)
            self.assertEqual((ms.peer, ms.peer_value), ("gloo", 1e4))
        ratios = {row[0]: row[4] for row in bench.rows(list(found.values()))[1]}
        beside = {name for name, ratio in ratios.items() if ratio != "-"}
        self.assertEqual(beside, {*collective.SUMS, "all_reduce.tcp", "all_reduce.trusted"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
