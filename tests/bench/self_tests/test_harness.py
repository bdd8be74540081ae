"""Tests of the benchmark harness: /usr/bin/python3 tests/bench/self_tests/test_harness.py"""

from __future__ import annotations

import copy
import json
import os
import select
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import figures
import harness
from harness import Failure, Figure, Missing
from testing import Quiet, contender, result

PRINT_VALUE = "import json, sys; print(json.dumps({'value': float(sys.argv[1])}))"


def script(code: str, *arguments: str) -> list[str]:
    """A command line that runs Python code."""
    return [sys.executable, "-c", code, *arguments]


class Medians(unittest.TestCase):
    def test_odd_even_and_empty(self) -> None:
        self.assertEqual(harness.median([3.0, 1.0, 2.0]), 2.0)
        self.assertEqual(harness.median(iter([4.0, 1.0])), 2.5)
        self.assertIsNone(harness.median([]))

    def test_a_result_skips_runs_without_the_figure(self) -> None:
        found = result("a", 5.0, 1.0, 3.0)
        found.readings.append({"other": 9.0})
        self.assertEqual(found.median("value"), 3.0)
        self.assertIsNone(found.median("unknown"))
        self.assertEqual(found.figures(), ["value", "other"])

    def test_best_is_the_lowest_median_of_those_measured(self) -> None:
        slow, fast, failed = result("slow", 2.0, 2.0), result("fast", 9.0, 1.0, 1.0), result("none")
        self.assertIs(harness.best([slow, failed, fast], "value"), fast)
        self.assertIsNone(harness.best([failed], "value"))


class Comparisons(unittest.TestCase):
    @staticmethod
    def read(**printed: tuple[float, str]) -> harness.Reading:
        """What is read from a run that printed these figures."""
        lines = [{"name": name, "value": value, "unit": unit}
                 for name, (value, unit) in printed.items()]
        return figures.read_figures(mock.Mock(json_lines=lambda: lines))

    def test_a_rate_is_inverted_so_that_below_1_is_ahead(self) -> None:
        bench = figures.Bench("x", "", {"troupe": "Troupe", "rpc": "RPC"}, lambda names: [],
                              lambda: [figures.Comparison("shm.rtt_8B_p50", "t", "a", "rpc"),
                                       figures.Comparison("shm.pipelined_8B", "t", "b", "rpc", "b"),
                                       figures.Comparison("local.idle", "t", "c")], "", 1.0)
        ours, theirs = result("t"), result("rpc")
        ours.readings.append(self.read(a=(10.0, "us"), b=(400.0, "1/s"), c=(5.0, "bytes")))
        theirs.readings.append(self.read(**{"shm.rtt_8B_p50": (20.0, "us"), "b": (100.0, "1/s")}))
        _, rows = bench.rows(bench.figures({"t": ours, "rpc": theirs}))
        self.assertEqual([row[0] for row in rows],
                         ["shm.rtt_8B_p50", "shm.pipelined_8B", "local.idle"])
        self.assertEqual([row[3] for row in rows], ["us", "1/s", "bytes"])
        self.assertEqual([row[4] for row in rows], ["0.500", "0.250", "-"])


class Quantities(unittest.TestCase):
    def test_a_copy_keeps_its_unit(self) -> None:
        made = copy.deepcopy(figures.Quantity(1.5, "s"))
        self.assertEqual((made, made.unit), (1.5, "s"))


class Tables(unittest.TestCase):
    rows = [["Troupe", "10.25", "-"], ["a longer name", "3.10", "1.2x"]]

    def test_text_goes_left_and_numbers_go_right(self) -> None:
        self.assertEqual(harness.table(["who", "seconds", "ratio"], self.rows).splitlines(), [
            "who            seconds  ratio",
            "-------------  -------  -----",
            "Troupe           10.25      -",
            "a longer name     3.10   1.2x"])

    def test_markdown_marks_the_same_columns(self) -> None:
        self.assertEqual(harness.markdown_table(["who", "seconds", "ratio"], self.rows), "\n".join([
            "| who | seconds | ratio |",
            "| --- | ---: | ---: |",
            "| Troupe | 10.25 | - |",
            "| a longer name | 3.10 | 1.2x |"]))

    def test_a_table_may_be_empty(self) -> None:
        self.assertEqual(harness.table(["a", "bc"], []), "a  bc\n-  --")
        self.assertEqual(harness.markdown_table(["a"], []), "| a |\n| --- |")

    def test_a_missing_number_is_a_dash(self) -> None:
        self.assertEqual(harness.number(None), "-")
        self.assertEqual(harness.number(1.005, 1, "x"), "1.0x")


class Figures(Quiet):
    def test_a_figure_is_one_json_line_with_its_ratio(self) -> None:
        figure = Figure("resnet.step_s.troupe", 3.0, "s", [3.0, 2.0, 4.0], "rpc.mb4", 12.0)
        self.assertEqual(list(json.loads(figure.to_json()).items()), [
            ("name", "resnet.step_s.troupe"), ("value", 3.0), ("unit", "s"), ("peer", "rpc.mb4"),
            ("peer_value", 12.0), ("ratio", 0.25), ("runs", [3.0, 2.0, 4.0])])

    def test_a_figure_alone_has_no_ratio(self) -> None:
        read = json.loads(Figure("a", 1.0, "s", [1.0]).to_json())
        self.assertEqual((read["peer"], read["peer_value"], read["ratio"]), (None, None, None))

    def test_one_figure_for_each_rival_that_was_measured(self) -> None:
        rivals = [(result("b", 4.0), "value"), (result("failed"), "value"),
                  (result("c", 8.0), "value")]
        found = harness.figures_against(result("a", 2.0), "value", "a.value", "s", rivals)
        self.assertEqual([(figure.peer, figure.peer_value) for figure in found],
                         [("b", 4.0), ("c", 8.0)])
        self.assertEqual(len(harness.figures_against(result("a", 2.0), "value", "a", "s")), 1)
        self.assertEqual(harness.figures_against(result("a"), "value", "a", "s", rivals), [])

    def test_figures_are_written_one_a_line(self) -> None:
        path = self.folder / "new" / "figures.jsonl"
        harness.write_figures(path, [Figure("a", 1.0, "s", [1.0]), Figure("b", 2.0, "s", [2.0])])
        names = [line["name"] for line in harness.json_lines(path.read_text())]
        self.assertEqual(names, ["a", "b"])


class Sections(Quiet):
    page = "before\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nafter\n"

    def test_only_the_text_between_the_markers_changes(self) -> None:
        wanted = "before\n<!-- bench:x -->\nnew\n<!-- /bench:x -->\nafter\n"
        self.assertEqual(harness.replace_section(self.page, "x", "new\n"), wanted)
        self.assertEqual(harness.replace_section(wanted, "x", "new"), wanted)

    def test_markers_must_stand_once_and_in_order(self) -> None:
        for text in ("", self.page + self.page, "<!-- /bench:x --><!-- bench:x -->"):
            with self.subTest(text), self.assertRaises(ValueError):
                harness.replace_section(text, "x", "new")

    def test_a_page_without_markers_is_left_alone(self) -> None:
        page = self.folder / "page.md"
        page.write_text(self.page)
        with self.assertRaisesRegex(Missing, "bench:y"):
            harness.write_section("y", "new", page)
        self.assertEqual(page.read_text(), self.page)
        harness.write_section("x", "new", page)
        self.assertIn("\nnew\n", page.read_text())

    def test_the_documents_have_the_resnet_markers(self) -> None:
        harness.replace_section(harness.DOCS.read_text(), "resnet", "")


class Runs(Quiet):
    def test_a_run_gives_output_cpu_and_memory_of_its_whole_tree(self) -> None:
        child = ("import time; x = bytearray(64 << 20); end = time.time() + 0.8\n"
                 "while time.time() < end: 1")
        parent = ("import subprocess, sys; "
                  f"subprocess.run([sys.executable, '-c', {child!r}]); print(7)")
        done = harness.run(script(parent), self.folder, 30)
        self.assertEqual(done.stdout, "7\n")
        self.assertGreater(max(done.peak_rss_bytes.values()), 64 << 20)
        self.assertGreaterEqual(len(done.peak_rss_bytes), 2)
        self.assertGreater(done.cpu_s, 0.05)

    def test_scratch_stands_for_the_folder_of_the_run(self) -> None:
        harness.run(script("import sys; open(sys.argv[1], 'w').write('5')", "{scratch}/file"),
                    self.folder, 30)
        self.assertEqual((self.folder / "file").read_text(), "5")

    def test_thread_settings_of_the_user_do_not_leak_in(self) -> None:
        show = script("import os; print([k for k in os.environ if k.startswith('OMP')])")
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "7"}):
            self.assertEqual(harness.run(show, self.folder, 30).stdout, "[]\n")

    def test_a_failing_command_is_quoted(self) -> None:
        code = "import sys; print('line\\n' * 50 + 'the reason', file=sys.stderr); sys.exit(3)"
        with self.assertRaisesRegex(Failure, r"exit code 3\n(line\n){11}the reason$"):
            harness.run(script(code), self.folder, 30)

    def test_a_signal_is_named(self) -> None:
        with self.assertRaisesRegex(Failure, "signal 9"):
            harness.run(script("import os; os.kill(os.getpid(), 9)"), self.folder, 30)

    def test_a_command_that_hangs_is_ended_with_its_children(self) -> None:
        code = ("import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
                "print(child.pid, flush=True); child.wait()")
        with self.assertRaisesRegex(Failure, "did not end within 1 s"):
            harness.run(script(code), self.folder, 1)
        pid = int((self.folder / "stdout").read_text())
        self.assertNotIn(pid, self._running())

    def test_a_process_left_behind_is_a_failure_and_is_ended(self) -> None:
        code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
        with mock.patch.object(harness, "EXIT_GRACE_S", 0.2), \
                self.assertRaisesRegex(Failure, "left processes behind: sleep"):
            harness.run(script(code), self.folder, 30)
        self.assertNotIn(int((self.folder / "stdout").read_text()), self._running())

    @staticmethod
    def _running() -> set[int]:
        return {process.pid for process in harness.all_processes().values() if not process.ended}


class ProcessTrees(unittest.TestCase):
    def test_a_name_may_hold_spaces_and_parentheses(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        times = f"{ticks} {2 * ticks} {3 * ticks} {4 * ticks}"
        read = harness.parse_stat(f"12 (a (b) c) S 1 2 3 0 -1 0 0 0 0 0 {times} 20 0")
        self.assertEqual(read, harness.Process(12, 1, 3, "a (b) c", False, 10.0))

    def test_own_tree_holds_a_child_and_its_memory(self) -> None:
        child = subprocess.Popen(["sleep", "600"])
        try:
            self.assertIn(child.pid, [process.pid for process in harness.process_tree(os.getpid())])
            self.assertGreater(harness.peak_rss_bytes(child.pid), 0)
        finally:
            child.kill()
            child.wait()
        self.assertEqual(harness.peak_rss_bytes(child.pid), 0)

    def test_busy_and_idle_processes_differ(self) -> None:
        busy, idle = subprocess.Popen(script("while True: 1")), subprocess.Popen(["sleep", "600"])
        try:
            self.assertGreater(harness.cpu_seconds_over(busy.pid, 0.5), 0.05)
            self.assertLess(harness.cpu_seconds_over(idle.pid, 0.1), 0.05)
        finally:
            for process in (busy, idle):
                process.kill()
                process.wait()


class Interleaving(Quiet):
    def test_contenders_take_turns(self) -> None:
        log = self.folder / "log"
        note = "import sys; open(sys.argv[2], 'a').write(sys.argv[1]); "
        both = [contender(name, script(note + PRINT_VALUE, value, str(log)))
                for name, value in (("a", "1"), ("b", "2"))]
        results = harness.interleave(both, rounds=3, timeout_s=30)
        self.assertEqual(log.read_text(), "121212")
        self.assertEqual([found.runs("value") for found in results], [[1.0] * 3, [2.0] * 3])
        self.assertEqual(harness.exit_code(results), 0)

    def test_a_failing_contender_is_reported_once_and_the_others_go_on(self) -> None:
        bad = contender("bad", script("raise SystemExit('out of luck')"))
        unreadable = contender("unreadable", script("print('{}')"))
        missing = contender("missing", ["/nowhere/program"])
        good = contender("good", script(PRINT_VALUE, "4"))
        results = harness.interleave([bad, unreadable, missing, good], rounds=2, timeout_s=30)
        self.assertEqual(results[3].runs("value"), [4.0, 4.0])
        self.assertEqual(self.said.getvalue().count("out of luck"), 1)
        self.assertIn("KeyError", results[1].failure)
        self.assertIn("/nowhere/program", results[2].failure)
        self.assertEqual(harness.exit_code(results), 1)
        self.assertIn("failed: bad, unreadable, missing", self.said.getvalue())


class CommandLine(Quiet):
    def test_what_is_missing_is_named_with_the_command_that_brings_it(self) -> None:
        with mock.patch.object(harness, "REPO", self.folder):
            with self.assertRaisesRegex(Missing, r"\./dev build"):
                harness.require_program("resnet_pipeline")
        with mock.patch.object(harness, "PEER_PYTHON", self.folder / "python"):
            with self.assertRaisesRegex(Missing, r"\./dev bench resnet --peers"):
                harness.require_peers("resnet")

    def test_missing_things_end_with_two_and_an_interrupt_with_130(self) -> None:
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        self.assertEqual(harness.guarded(mock.Mock(side_effect=Missing("run ./dev build"))), 2)
        self.assertIn("run ./dev build", self.said.getvalue())
        self.assertEqual(harness.guarded(mock.Mock(side_effect=KeyboardInterrupt)), 130)

    def test_an_interrupted_benchmark_leaves_no_process(self) -> None:
        code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import harness
command = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); "
           "open({str(self.folder / 'fifo')!r}, 'w').write(str(os.getpid())); "
           "import signal; signal.pause()"]
contender = harness.Contender("sleeper", command, lambda run: {{}})
raise SystemExit(harness.guarded(lambda: len(harness.interleave([contender], 1, 60))))
"""
        os.mkfifo(self.folder / "fifo")
        fifo = os.open(self.folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, fifo)
        bench = subprocess.Popen(script(code), stderr=subprocess.DEVNULL)
        self.assertTrue(select.select([fifo], [], [], 30)[0], "the contender did not start")
        pid = int(os.read(fifo, 20))
        bench.send_signal(signal.SIGINT)
        self.assertEqual(bench.wait(30), 130)
        self.assertFalse(Path(f"/proc/{pid}").exists())


if __name__ == "__main__":
    unittest.main()
