"""Tests of single benchmarks: /usr/bin/python3 tests/bench/self_tests/test_benchmarks.py"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import builds
import collective
import fork
import harness
import idle
import messaging
import optimizers
import recovery
import resnet
import schedules
import steps
import strangers
from harness import Failure, Missing, Result, Run
from testing import Quiet, contender, result


class Peers(unittest.TestCase):
    def test_every_figure_of_the_benchmarks_has_a_contender(self) -> None:
        with mock.patch.object(harness, "require_program", str), \
                mock.patch.object(harness, "require_peers", str):
            for bench in (collective, messaging, fork, optimizers):
                names = {each.name for each in bench.contenders(list(bench.FAMILIES))}
                for row in bench.comparisons():
                    self.assertIn(row.contender, names)
                    self.assertIn(row.peer, names | {""})


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
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
        self.enterContext(mock.patch.object(harness, "require_program", lambda _: str(program)))
        self.enterContext(mock.patch.object(idle, "SETTLE_S", 0.0))
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
        """One in which what training needs takes no time; `rest`: the command for all else."""
        made = self.folder / "repository"
        made.mkdir()
        (made / "CMakePresets.json").write_text(json.dumps(self.PRESETS))
        (made / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES NONE)\n"
            "add_custom_target(resnet_pipeline COMMAND true)\n"
            f"add_custom_target(rest ALL COMMAND {rest})\n")
        (made / "engine").mkdir()
        (made / "engine" / builds.CORE_HEADER).write_text("")
        git = ["git", "-C", str(made), "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
            subprocess.run([*git, *words], check=True)
        self.enterContext(mock.patch.object(harness, "REPO", made))
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
        self.assertEqual(list(found), ["train", "train.cpu", "everything", "everything.cpu",
                                       "core_header", "core_header.cpu"])
        self.assertGreater(found["everything"], found["train"] + 0.3)
        self.assertGreaterEqual(found["everything.cpu"], found["train.cpu"])

    def test_a_core_s_header_changes_before_the_last_build(self) -> None:
        header = f"engine/{builds.CORE_HEADER}"
        self.repository(f"cat ${{CMAKE_SOURCE_DIR}}/{header} >> ${{CMAKE_BINARY_DIR}}/seen")
        found = self.built()
        seen = self.folder / "target" / "sources" / "build" / "release" / "seen"
        self.assertEqual(seen.read_text(), "// A comment, for a build.\n")
        self.assertLess(found["core_header"], found["everything"])

    def test_a_commit_without_that_header_is_refused_by_name(self) -> None:
        made = self.folder / "made"
        made.mkdir()
        with self.assertRaisesRegex(Failure, "there is no stage_core.hpp in engine/"):
            builds.change_core_header(made)

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


class Steps(Quiet):
    def of(self, kind: str, here: list[float], base: list[float]) -> list[Result]:
        """A kind's results in both builds, with as much memory as seconds."""
        return [Result(contender(f"{kind}.{build}", []),
                       [{"step": value, "memory": value} for value in values])
                for build, values in (("here", here), ("base", base))]

    def test_both_builds_run_one_after_the_other(self) -> None:
        for program in ("resnet_pipeline", "transformer_pipeline"):
            (self.folder / program).touch()
        with mock.patch.object(harness, "require_program", str):
            made = steps.contenders(["resnet18.bf16", "gpt.fp32"], self.folder)
        self.assertEqual([each.name for each in made], ["resnet18.bf16.here", "resnet18.bf16.base",
                                                        "gpt.fp32.here", "gpt.fp32.base"])
        self.assertEqual(made[0].command[1:], made[1].command[1:])
        self.assertEqual(made[0].command[0], "resnet_pipeline")
        self.assertEqual(made[1].command[0], str(self.folder / "resnet_pipeline"))

    def test_a_folder_without_the_programs_is_refused(self) -> None:
        with mock.patch.object(harness, "require_program", str), \
                self.assertRaisesRegex(Missing, "there is no program transformer_pipeline in"):
            steps.contenders(["gpt.bf16"], self.folder)

    def test_a_run_is_read(self) -> None:
        lines = [{"step": step, "loss": 1.0, "seconds": 10.0 / step}
                 for step in range(1, steps.STEPS + 1)]
        (self.folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = steps.read(Run("", self.folder, 1.0, 1.0, {1: 3 << 20, 2: 4 << 20}))
        self.assertEqual(found, {"step": 2.5, "memory": 7.0})
        self.assertEqual({name: value.unit for name, value in found.items()},
                         {"step": "s", "memory": "MiB"})

    def test_a_ratio_is_that_of_pairs_which_noise_slowed_alike(self) -> None:
        slower = self.of("gpt.fp32", [3.3, 1.1, 2.2], [3.0, 1.0, 2.0])
        self.assertEqual(steps.rows(slower), [["gpt.fp32", "2.200", "1.100", "3.300", "2.000",
                                               "1.100", "2", "2", "1.100"]])
        self.assertEqual(steps.remark(slower),
                         "Slower than the other build by more than 2 %: gpt.fp32 of 1.")
        both = slower + self.of("gpt.bf16", [1.0], [1.0])
        self.assertIn("gpt.fp32 of 2.", steps.remark(both))
        self.assertIn("none of 1.", steps.remark(both[2:]))

    def test_without_another_build_there_is_nothing_to_compare(self) -> None:
        alone = self.of("gpt.fp32", [2.0], [])[:1]
        self.assertEqual(steps.rows(alone), [["gpt.fp32", "2.000", "2.000", "2.000", "-", "-", "2",
                                              "-", "-"]])
        self.assertEqual(steps.remark(alone), "")


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

    def test_replicas_of_one_stage_have_no_schedule_and_a_micro_batch_each(self) -> None:
        found = resnet.setups("replicas", [1, 2], ["fp32"], ["1f1b", "gpipe"], True)
        self.assertEqual([setup.name for setup in found], ["replicas.mb2"])
        self.assertEqual(found[0].cells(),
                         ["Troupe, replicas of one stage", "fp32", "-", "2", "-"])
        with mock.patch.object(harness, "require_program", return_value="resnet_pipeline"):
            words = resnet.troupe_command(self.options(), found[0])
        flags = dict(zip(words[1::2], words[2::2]))
        self.assertEqual((flags["--stages"], flags["--replicas"]), ("1", "2"))
        self.assertFalse({"--schedule", "--cut", "--partition"} & set(flags))

    def test_replicas_are_compared_with_the_best_pipeline(self) -> None:
        rows = [(resnet.Setup(family, schedule, 4), Result(contender(f"{family}.{schedule}", []), [
            {"step_s": step_s, "first_loss": 0.5, "last_loss": 0.1}]))
            for family, schedule, step_s in (("troupe", "1f1b", 5.0), ("troupe", "zb-h2", 4.0),
                                             ("replicas", "", 3.0))]
        self.assertIn("2 replicas of one stage in fp32 (replicas., 3.000 s) take 0.75 of the time of "
                      "Troupe's best pipeline (troupe.zb-h2, 4.000 s).", resnet.Report(rows).text())

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
        program.write_text(f"""#!{sys.executable}
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

    def test_a_stage_of_a_host_is_killed_and_nothing_else_there(self) -> None:
        names = {5: "", 6: "understudy-1", 7: "stage-1"}
        host = mock.Mock()
        with mock.patch.object(harness, "process_tree",
                               return_value=[mock.Mock(pid=each) for each in names]) as tree, \
                mock.patch.object(harness, "node_name", names.get), \
                mock.patch.object(recovery.os, "kill") as kill:
            recovery.kill_stage(host)
        tree.assert_called_once_with(host.process.pid)
        kill.assert_called_once_with(7, recovery.signal.SIGKILL)

    def lose_hosts(self, log: str) -> tuple[list[str], dict[str, float]]:
        """The flags of runs that say this, each of which loses a host at 10 s, is replayed at
        11.5 s, and tells a step at 12 s; and their figures."""
        said: dict[str, float] = {}
        run = mock.Mock(**{"said.return_value": log, "wait_for_replay.return_value": 11.5,
                           "wait_for.return_value": 12.0, "fail.side_effect": Failure(log)})
        run.steps = self.folder / "steps.json"
        hosts = mock.MagicMock()
        lose = mock.Mock(return_value=10.0)
        with mock.patch.object(recovery, "Run", return_value=run) as start, \
                mock.patch.object(recovery, "Hosts", hosts), \
                mock.patch.object(recovery, "over_ssh", return_value=""), \
                mock.patch.object(recovery, "program", str), \
                mock.patch.object(recovery, "say_figure",
                                  lambda name, value, _: said.update({name: value})):
            recovery.measure_hosts(lose, 1)(self.folder)
        self.assertEqual(lose.call_count, recovery.CUTS)
        return start.call_args.args[1], said

    def test_lost_hosts_are_measured_from_their_loss_with_understudies(self) -> None:
        flags, said = self.lose_hosts("stage-1 is replayed from step 4; ..")
        self.assertEqual(flags[flags.index("--understudies") + 1], "1")
        self.assertEqual(said["to_replay_half"], 1.5)
        self.assertEqual(said["to_next_step_half"], 2.0)

    def test_a_lost_host_whose_stage_is_not_replayed_alone_is_no_measurement(self) -> None:
        with self.assertRaises(Failure):
            self.lose_hosts("the run goes on after step 4")


if __name__ == "__main__":
    unittest.main()
