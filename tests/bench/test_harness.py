"""Tests of the benchmark harness: /usr/bin/python3 tests/bench/test_harness.py"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import builds
import collective
import figures
import fork
import harness
import idle
import messaging
import optimizers
import recovery
import resnet
import schedules
import strangers
from harness import Contender, Failure, Figure, Missing, Result, Run

PYTHON = sys.executable
PRINT_VALUE = "import json, sys; print(json.dumps({'value': float(sys.argv[1])}))"


def script(code: str, *arguments: str) -> list[str]:
    """A command line that runs Python code."""
    return [PYTHON, "-c", code, *arguments]


def contender(name: str, command: list[str]) -> Contender:
    """A contender whose figure is the last JSON line's value."""
    return Contender(name, command, lambda run: {"value": run.json_lines()[-1]["value"]})


def result(name: str, *values: float) -> Result:
    """A result with one reading a value."""
    return Result(contender(name, []), [{"value": value} for value in values])


class Quiet(unittest.TestCase):
    """Keeps what the harness says, and gives each test a folder."""

    def setUp(self) -> None:
        self.said = io.StringIO()
        redirect = contextlib.redirect_stderr(self.said)
        redirect.__enter__()
        self.addCleanup(redirect.__exit__, None, None, None)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


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

    def test_every_figure_of_the_benchmarks_has_a_contender(self) -> None:
        with mock.patch.object(harness, "require_program", str), \
                mock.patch.object(harness, "require_peers", str):
            for bench in (collective, messaging, fork, optimizers):
                names = {each.name for each in bench.contenders(list(bench.FAMILIES))}
                for row in bench.comparisons():
                    self.assertIn(row.contender, names)
                    self.assertIn(row.peer, names | {""})


class Quantities(unittest.TestCase):
    def test_a_copy_keeps_its_unit(self) -> None:
        made = copy.deepcopy(figures.Quantity(1.5, "s"))
        self.assertEqual((made, made.unit), (1.5, "s"))


class Strangers(unittest.TestCase):
    def test_the_remark_says_whether_the_limit_was_kept(self) -> None:
        found = result("mixed")
        self.assertIn("Nothing was measured", strangers.remark(found))
        found.readings.append({"in_links": 1.9})
        self.assertIn("within the limit of 2 %", strangers.remark(found))
        found.readings = [{"in_links": 2.1}]
        self.assertIn("OVER the limit", strangers.remark(found))


class Idle(Quiet):
    JOIN = ("import subprocess, sys, time; child = subprocess.Popen(['sleep', '600'])\n"
            "for n in 0, 1: print(f'stage-{n}: process 7 has joined it', file=sys.stderr, flush=True)\n")

    def of(self, code: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
        """A run whose program is this code."""
        program = self.folder / "paced_pipeline"
        program.write_text(f"#!{PYTHON}\n{code}")
        program.chmod(0o755)
        for where, what, other in ((harness, "require_program", lambda _: str(program)),
                                   (idle, "SETTLE_S", 0.0)):
            patch = mock.patch.object(where, what, other)
            patch.start()
            self.addCleanup(patch.stop)
        return idle.idle_run()

    def test_a_run_that_waits_is_measured_and_leaves_no_process(self) -> None:
        with self.of(self.JOIN + "time.sleep(600)") as run:
            self.assertEqual(len(harness.process_tree(run.pid)), 2)
            self.assertLess(harness.cpu_seconds_over(run.pid, 0.1), 0.1)
        self.assertEqual([each for each in harness.process_tree(run.pid) if not each.ended], [])

    def test_a_run_that_burns_a_core_is_seen(self) -> None:
        with self.of(self.JOIN + "while True: 1") as run:
            self.assertTrue(any(harness.cpu_seconds_over(run.pid, 0.5) > 0.05 for _ in range(20)))

    def test_a_run_that_does_not_begin_is_a_failure_with_its_reason(self) -> None:
        with self.assertRaisesRegex(Failure, "no such model"), \
                self.of("import sys; sys.exit('no such model')"):
            self.fail("it has not begun")

    def test_arithmetic_is_counted_and_the_remark_says_whether_the_limit_was_kept(self) -> None:
        self.assertGreater(idle.arithmetic(0.1), 0)
        found = result("shm")
        self.assertIn("Nothing was measured", idle.remark([found]))
        found.readings.append({"cpu_of_60_s": 0.6})
        self.assertIn("0.60 CPU seconds of 60 in which it waits: within the limit of 1",
                      idle.remark([found]))
        found.readings = [{"cpu_of_60_s": 1.2}]
        self.assertIn("OVER the limit", idle.remark([found]))


class Builds(Quiet):
    PRESETS = {"version": 4, "configurePresets": [
        {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}]}

    def repository(self, rest: str) -> Path:
        """One whose program is a file that is there at once; `rest`: the command of all else."""
        made = self.folder / "repository"
        made.mkdir()
        (made / "CMakePresets.json").write_text(json.dumps(self.PRESETS))
        (made / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES NONE)\n"
            "add_custom_target(resnet_pipeline COMMAND true)\n"
            f"add_custom_target(rest ALL COMMAND {rest})\n")
        git = ["git", "-C", str(made), "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
            subprocess.run([*git, *words], check=True)
        patch = mock.patch.object(harness, "REPO", made)
        patch.start()
        self.addCleanup(patch.stop)
        return made

    def built(self) -> dict[str, float]:
        """The figures of a build of the last commit."""
        target, said = self.folder / "target", io.StringIO()
        target.mkdir()
        with contextlib.redirect_stdout(said):
            builds.measure(builds.commit_called("HEAD"), target)
        return {line["name"]: line["value"] for line in harness.json_lines(said.getvalue())}

    def test_what_training_needs_is_a_part_of_everything(self) -> None:
        self.repository("sleep 0.3")
        found = self.built()
        self.assertEqual(list(found), ["train", "train.cpu", "everything", "everything.cpu"])
        self.assertGreater(found["everything"], found["train"] + 0.3)
        self.assertGreaterEqual(found["everything.cpu"], found["train.cpu"])

    def test_a_build_that_fails_says_why(self) -> None:
        self.repository("cat no_such_file")
        with self.assertRaisesRegex(Failure, "no_such_file"):
            self.built()

    def test_a_base_that_is_no_commit_is_refused(self) -> None:
        with self.assertRaisesRegex(Missing, "there is no commit 'of yesterday'"):
            builds.commit_called("of yesterday")

    def test_a_disk_without_room_is_refused_before_anything_is_built(self) -> None:
        usage = mock.Mock(free=builds.ROOM_BYTES - 1)
        with mock.patch.object(builds.shutil, "disk_usage", return_value=usage), \
                self.assertRaisesRegex(Missing, "a build may take 8 GiB, and .* TMPDIR"):
            builds.require_room()

    def test_two_commits_are_set_beside_each_other(self) -> None:
        def of(name: str, *seconds: float) -> Result:
            return Result(contender(name, []), [dict(zip(("train", "everything"), seconds))])
        self.assertEqual(builds.remark([of("a", 5, 9)]), "")
        self.assertEqual(builds.remark([of("a", 5, 9), of("b", 10, 12)]),
                         "`train` takes 0.50 of the time that it takes at b. "
                         "`everything` takes 0.75 of the time that it takes at b.")


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
sys.path.insert(0, {str(Path(__file__).parent)!r})
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


class Resnet(Quiet):
    """The ResNet benchmark with a stand-in for Troupe's program."""

    def options(self, *words: str) -> object:
        with mock.patch.object(sys, "argv", ["resnet", *words]):
            return resnet.parse()

    def test_one_micro_batch_is_measured_as_gpipe_only(self) -> None:
        both = ["1f1b", "gpipe"]
        names = [setup.name for setup in resnet.setups("troupe", [1, 4], ["fp32"], both)]
        self.assertEqual(names, ["troupe.1f1b.mb4", "troupe.gpipe.mb1", "troupe.gpipe.mb4"])
        names = [setup.name for setup in resnet.setups("rpc", [1], ["fp32"], both)]
        self.assertEqual(names, ["rpc.mb1"])

    def test_only_troupe_is_measured_with_a_cut_of_its_own(self):
        kinds = ["fp32", "bf16-channels_last"]
        names = [setup.name for setup in resnet.setups("troupe", [4], kinds, ["1f1b"], True)]
        self.assertEqual(names, ["troupe.1f1b.mb4", "troupe.1f1b.mb4.auto-cut",
                                 "troupe.1f1b.mb4.bf16-channels_last",
                                 "troupe.1f1b.mb4.bf16-channels_last.auto-cut"])
        peers = [setup.auto_cut for setup in resnet.setups("rpc", [4], kinds, ["1f1b"], True)]
        self.assertEqual(peers, [False, False])

    def test_a_peer_is_measured_with_the_schedules_it_has_in_each_variant(self) -> None:
        kinds = ["fp32", "bf16-channels_last"]
        names = [setup.name for setup in resnet.setups("pipelining", [4], kinds, ["zb-h1", "1f1b"])]
        self.assertEqual(names, ["pipelining.1f1b.mb4", "pipelining.1f1b.mb4.bf16-channels_last"])
        setup = resnet.Setup("rpc", "", 4, "bf16-channels_last")
        self.assertEqual(resnet.variant(setup),
                         ["--precision", "bf16", "--memory-format", "channels_last"])

    def test_bad_flags_are_refused(self) -> None:
        for words in (["--micro-batches", "7"], ["--steps", "1"], ["--only", "nobody"],
                      ["--write-docs"], ["--micro-batches", "x"], ["--variants", "fp8"]):
            with self.subTest(words), self.assertRaises(SystemExit):
                self.options(*words)

    def test_a_run_of_troupe_is_read(self) -> None:
        stages = [{"name": name, "busy_s": 2.0, "idle_s": 1.0, "peak_memory_bytes": 5}
                  for name in ("stage-0", "stage-1")]
        lines = [{"step": step, "loss": 0.5 / step, "seconds": seconds, "samples_per_s": 1.0,
                  "bubble": 0.1, "stages": stages}
                 for step, seconds in ((1, 9.0), (2, 3.0), (3, 4.0))]
        (self.folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run = Run("", self.folder, 20.0, 18.0, {30: 700, 10: 20, 20: 900})
        options = self.options("--steps", "3")
        self.assertEqual(resnet.troupe_reader(options)(run), {
            "step_s": 3.5, "first_loss": 0.5, "last_loss": 0.5 / 3, "cpu_overhead": 1.5,
            "peak:stage 1": 900, "peak:stage 2": 700,
            "reported_peak:stage-0": 5, "reported_peak:stage-1": 5})
        with self.assertRaisesRegex(Failure, "3 steps instead of 4"):
            resnet.troupe_reader(self.options("--steps", "4"))(run)

    def test_the_report_compares_with_the_best_of_each_peer(self) -> None:
        def row(family: str, schedule: str, count: int, step_s: float) -> tuple:
            setup = resnet.Setup(family, schedule, count)
            reading = {"step_s": step_s, "first_loss": 0.5, "last_loss": 0.1,
                       "peak:stage 1": 1 << 20, "peak:stage 2": 3 << 20}
            reading |= {"cpu_overhead": 1.4} if family == "troupe" else {}
            return setup, Result(contender(setup.name, []), [reading])

        report = resnet.Report([row("troupe", "1f1b", 4, 3.0), row("pipelining", "1f1b", 4, 6.0),
                                row("pipelining", "gpipe", 8, 5.0), row("rpc", "", 8, 12.0)])
        header, rows = report.times()
        self.assertEqual(header[-2:], ["/ pipelining", "/ rpc"])
        self.assertEqual(rows[0][-2:], ["0.60", "0.25"])
        self.assertIn("pipelining.gpipe.mb8, 5.000 s", report.text())
        self.assertIn("ABOVE the limit", report.text())
        lines = {(figure.name, figure.peer): figure.peer_value for figure in report.figures()}
        self.assertEqual(lines["resnet.step_s.troupe.1f1b.mb4", "rpc.mb8"], 12.0)
        name = "resnet.peak.stage_1.troupe.1f1b.mb4"
        self.assertEqual(lines[name, "pipelining.1f1b.mb4"], 1 << 20)
        self.assertIn("| Troupe | fp32 | 1f1b | 4 | given | 3.000 |", report.markdown("today", "how"))

    def test_precisions_are_compared_apart_and_with_fp32(self) -> None:
        def row(family: str, variant: str, step_s: float) -> tuple:
            setup = resnet.Setup(family, "", 4, variant)
            reading = {"step_s": step_s, "first_loss": 0.5, "last_loss": 0.1}
            return setup, Result(contender(setup.name, []), [reading])

        report = resnet.Report([row("troupe", "fp32", 4.0), row("troupe", "bf16", 2.0),
                                row("rpc", "fp32", 10.0), row("rpc", "fp32-channels_last", 8.0),
                                row("rpc", "bf16", 5.0)])
        _, rows = report.times()
        self.assertEqual([cells[-1] for cells in rows], ["0.50", "0.40", "1.25", "1.00", "1.00"])
        self.assertIn("in bf16 (troupe.mb4.bf16, 2.000 s) takes 0.25 of the time of the best of "
                      "PyTorch RPC in fp32 (rpc.mb4.fp32-channels_last", report.text())

    def test_peers_that_begin_with_different_losses_are_reported(self) -> None:
        rows = [(resnet.Setup(family, "", 4), Result(contender(family, []), [
            {"step_s": 1.0, "first_loss": loss, "last_loss": loss}]))
            for family, loss in (("rpc", 0.50), ("one_process", 0.52))]
        self.assertIn("first losses differ", resnet.Report(rows).text())

    def test_a_whole_benchmark_with_a_stand_in_program(self) -> None:
        program = self.folder / "resnet_pipeline"
        program.write_text(f"""#!{PYTHON}
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if flags["--schedule"] == "gpipe":
    sys.exit("no such schedule")
with open(flags["--json"], "w") as out:
    for step in (1, 2, 3):
        print(json.dumps({{"step": step, "seconds": 0.25, "loss": 1.0, "stages": []}}), file=out)
""")
        program.chmod(0o755)
        figures, out = self.folder / "figures.jsonl", io.StringIO()
        argv = ["resnet", "--steps", "3", "--rounds", "2", "--micro-batches", "2",
                "--json", str(figures)]
        with mock.patch.object(harness, "require_program", return_value=str(program)), \
                mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out):
            self.assertEqual(resnet.main(), 1)
        self.assertIn("no such schedule", self.said.getvalue())
        self.assertIn("0.250", out.getvalue())
        first = harness.json_lines(figures.read_text())[0]
        self.assertEqual((first["name"], first["runs"]),
                         ("resnet.step_s.troupe.1f1b.mb2", [0.25, 0.25]))


def shares_of(stage: int, action: str, begin: int, over_us: int = 100) -> list[dict]:
    """A stage's part of a trace of sleeping layers: one action, each layer so much too long."""
    share = schedules.PACE_MS * 1000 // schedules.WEIGHTS + over_us
    return [{"layer": stage * schedules.WEIGHTS + place, "action": action,
             "begin": begin + place * share, "end": begin + (place + 1) * share}
            for place in range(schedules.WEIGHTS)]


class Schedules(Quiet):
    def test_prices_are_read_from_a_trace(self) -> None:
        first = schedules.PACED_MICRO_BATCHES  # of the second step: the first one is left out
        trace = shares_of(2, f"F{first - 1}", 0, 5000) + shares_of(2, f"F{first}", 100_000)
        trace += shares_of(3, f"I{first}", 700_000)
        end = trace[-1]["end"]
        trace += shares_of(3, f"I{first + 1}", end + 300)
        trace += shares_of(2, f"I{first}", end + 700)  # the stage has waited for it
        for action in (f"W{first}", f"I{first + 1}"):  # it has not for these
            trace += shares_of(2, action, trace[-1]["end"] + 300)
        found = schedules.prices(trace)
        self.assertAlmostEqual(found["layer us"], 100)
        self.assertAlmostEqual(found["action us"], 300)
        self.assertAlmostEqual(found["message us"], 400)

    def test_rounds_of_before_count(self) -> None:
        earlier = self.folder / "figures.jsonl"
        one, two = result("paced.one", 1.0, 2.0), result("paced.two", 5.0)
        harness.write_figures(earlier, [
            made for each in (one, two)
            for made in harness.figures_against(each, "value", f"{each.contender.name}.value", "s")])
        again = result("paced.one", 9.0)
        schedules.recall([again], [earlier])
        self.assertEqual(again.runs("value"), [9.0, 1.0, 2.0])


class Recovery(Quiet):
    """What a run says of its losses."""

    def test_holder_is_the_last_that_took_the_place(self) -> None:
        log = ("debug: stage-1.2 has the place of stage-1\ninfo: understudy-1 takes the place of "
               "stage-0\ndebug: understudy-1 has the place of stage-0\n"
               "debug: understudy-2 has the place of stage-1\n")
        self.assertEqual(recovery.holder_of("stage-0", log), "understudy-1")
        self.assertEqual(recovery.holder_of("stage-1", log), "understudy-2")
        self.assertEqual(recovery.holder_of("stage-2", log), "stage-2")

    def test_shares_of_times_are_the_least_that_so_many_do_not_exceed(self) -> None:
        said: dict[str, float] = {}
        with mock.patch.object(recovery, "say_figure",
                               lambda name, value, _: said.update({name: value})):
            recovery.say_times("t", [float(100 - each) for each in range(100)])
            recovery.say_times("one", [5.0])
        self.assertEqual([said[f"t_{each}"] for each in ("half", "p90", "p99", "most")],
                         [50.0, 90.0, 99.0, 100.0])
        self.assertEqual(said["one_half"], 5.0)
        self.assertEqual(said["one_most"], 5.0)


if __name__ == "__main__":
    unittest.main()
