// A run that loses stages goes on with other processes, to the bits of a run that nothing happened
// to.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/multiprocess/recovery/disturbed_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests::recovery;
using tests::check_same_weights;
using tests::count_of;
using tests::fault;
using tests::program_outcome;
using tests::run_other;
using tests::run_program;
using tests::saboteur;
using tests::scratch_folder;
using tests::signal_to;
using tests::steps_in;
using tests::with;
using tests::words;

/// A run that loses a stage, whose place is taken by a process that stands still before it has
/// joined: `how` is a variable of small_pipeline.cpp. Within `most` after the loss was known the
/// other stages go on.
program_outcome check_hindered(const char* how, std::chrono::seconds most, const words& more = {}) {
  const scratch_folder folder;
  std::optional<tests::hold_up> held;
  const auto lose = [&held](pid_t program) {
    CHECK(signal_to(program, "stage-1"));
    held.emplace();
  };
  REQUIRE(::setenv(how, "stage-1.2", 1) == 0);
  const auto outcome = run_program(
      with(with(with(training({"--stages", "2"}), recovering), {"--save", folder / "weights"}),
           more),
      tests::at_line("step 5/", lose));
  ::unsetenv(how);
  CHECK(outcome.code == 0);
  REQUIRE(held);
  CHECK(tests::seconds_to_go_on(outcome) < most + held->over(tests::threads_of_a_loss));
  const calm_run calm(TROUPE_PROGRAM, training({"--stages", "2"}));
  check_same_weights(calm.weights(), folder / "weights");
  return outcome;
}

}  // namespace

TEST_CASE("A run whose stages are killed goes on to the bits of one that nothing happened to",
          "[untimed]") {
  const calm_run calm(TROUPE_PROGRAM, training({"--stages", "2"}));
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const auto outcome =
        check_like(calm, training({"--stages", "2", "--link", link}),
                   {{4, {.stage = "stage-0"}}, {8, {.stage = "stage-1"}}}, sequel::replayed);
    for (const std::string stage : {"stage-0", "stage-1"})
      CHECK_THAT(outcome.err, ContainsSubstring(stage + " was killed by signal 9 (SIGKILL)") &&
                                  ContainsSubstring("it is replaced"));
  }
}

TEST_CASE("Whichever stage is lost, only that one is replayed, whatever the schedule",
          "[untimed]") {
  const auto run = [](const words& schedule) {
    return with(training({"--stages", "3", "--schedule"}, 10, 1), schedule);
  };
  const calm_run calm(TROUPE_PROGRAM, run({"1f1b"}));
  for (const words& schedule : {words{"1f1b"}, words{"gpipe"}, words{"zb-h1"}, words{"zb-v"},
                                words{"interleaved-1f1b", "--chunks", "2"}}) {
    INFO(schedule.front());
    const auto outcome = check_like(
        calm, run(schedule),
        {{2, {.stage = "stage-0"}}, {4, {.stage = "stage-1"}}, {6, {.stage = "stage-2"}}},
        sequel::replayed);
    for (const std::string stage : {"stage-0", "stage-1", "stage-2"})
      CHECK_THAT(outcome.err, ContainsSubstring(stage + " is replayed from step ") &&
                                  ContainsSubstring("; the other stages go on"));
  }
}

TEST_CASE("A stage is replayed with a dynamic loss scale that falls and rises", "[untimed]") {
  const auto run =
      training({"--stages", "2", "--loss-scale", "dynamic", "--loss-scale-interval", "2"}, 10, 1);
  const calm_run calm(TROUPE_PROGRAM, run);
  for (const std::string stage : {"stage-0", "stage-1"})
    check_like(calm, run, {{3, {.stage = stage}}, {6, {.stage = stage}}}, sequel::replayed);
}

TEST_CASE("A run goes on however often it loses a stage, if it comes forward in between",
          "[untimed]") {
  check_run(training({"--stages", "3", "--schedule", "zb-h1"}, 14),
            {{2, {.stage = "stage-2"}},
             {4, {.stage = "stage-0"}},
             {6, {.stage = "stage-1"}},
             {9, {.stage = "stage-1"}},
             {10, {.stage = "stage-2"}}},
            sequel::either);
}

TEST_CASE("A run that goes back to one checkpoint again and again comes forward all the same") {
  const scratch_folder folder;
  const fault both{.stage = "stage-0", .with = {"stage-1"}};
  check_run(training({"--stages", "3", "--link", "tcp"}, 14),
            {{5, both}, {6, both}, {7, both}, {8, both}, {9, both}}, sequel::returned,
            {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "100"});
}

TEST_CASE("All of many stages are lost at once, found out one by one, and replaced") {
  const fault all{.stage = "stage-4", .with = {"stage-2", "stage-0", "stage-3", "stage-1"}};
  const auto outcome = check_run(training({"--stages", "5"}), {{5, all}}, sequel::replayed);
  CHECK_THAT(outcome.err,
             ContainsSubstring("stage-0, stage-1, stage-2, stage-3 and stage-4 are replayed"));
  check_run(training({"--stages", "5", "--link", "tcp"}), {{5, all}}, sequel::returned);
}

TEST_CASE("A stage that is stopped is replaced like one that is dead", "[untimed]") {
  const auto outcome = check_run(training({"--stages", "2"}),
                                 {{4, {.stage = "stage-1", .signal = SIGSTOP}}}, sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("is replaced"));
}

TEST_CASE("A stage whose work thread hangs is replaced with --hang-timeout", "[untimed]") {
  const auto run = training({"--stages", "2"});
  const calm_run calm(TROUPE_PROGRAM, run);
  const scratch_folder folder;
  std::optional<tests::stopped_thread> stopped;
  const auto outcome = run_program(
      with(with(run, recovering),
           {"--slow-after", "1", "--hang-timeout", "4", "--save", folder / "weights"}),
      [&](pid_t program, std::string_view line) {
        if (stopped || line.find("step 4/") != 0) return;
        stopped.emplace(tests::process_with_thread(tests::children_of(program), "stage-1"),
                        "stage-1", true);
      });
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 has been in ") &&
                              ContainsSubstring("longer than --hang-timeout allows (4.0 s)") &&
                              ContainsSubstring("it is replaced"));
  check_sequel(outcome.err, 1, sequel::replayed);
  check_same_weights(calm.weights(), folder / "weights");
  check_same_weights(calm.state(), folder / "weights.state.safetensors");
}

TEST_CASE("Nobody gets a lost stage's place before its process has ended", "[untimed]") {
  const auto run = training({"--stages", "2"});
  const calm_run calm(TROUPE_PROGRAM, run);
  const scratch_folder folder;
  std::optional<tests::held_up_end> held;
  const auto hold_up = tests::at_line("step 4/", [&](pid_t program) {
    const auto stage = tests::process_with_thread(tests::children_of(program), "stage-1");
    held.emplace(stage, "stage-1");
    ::kill(stage, SIGKILL);
  });
  const auto let_end = tests::at_line(
      "stage-1 was killed, and has not ended: a disk may hold it up; it is waited for another "
      "minute",
      [&](pid_t program) {
        CHECK(tests::process_of(program, "stage-1.2") == 0);
        held.reset();
      });
  const auto outcome = run_program(with(with(run, recovering), {"--save", folder / "weights"}),
                                   tests::one_after_other(hold_up, let_end));
  CHECK_FALSE(held.has_value());
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1 is replayed from step "));
  check_sequel(outcome.err, 1, sequel::replayed);
  check_same_weights(calm.weights(), folder / "weights");
  check_same_weights(calm.state(), folder / "weights.state.safetensors");
}

TEST_CASE("A trainer that was stopped for so long that its stages left replaces all of them") {
  const auto run = training({"--stages", "2"});
  const calm_run calm(TROUPE_PROGRAM, run);
  const scratch_folder folder;
  const auto hold = [](pid_t program) {
    const auto stages = tests::children_of(program);
    CHECK(stages.size() == 2);
    ::kill(program, SIGSTOP);
    for (const auto stage : stages) CHECK(tests::wait_until_gone(stage));
    ::kill(program, SIGCONT);
  };
  const auto outcome = run_program(with(with(run, recovering), {"--save", folder / "weights"}),
                                   tests::at_line("step 4/", hold));
  CHECK(outcome.code == 0);
  check_sequel(outcome.err, 1, sequel::replayed);
  check_same_weights(calm.weights(), folder / "weights");
  check_same_weights(calm.state(), folder / "weights.state.safetensors");
}

TEST_CASE("Stages that are lost together are replayed together, where they are no neighbours",
          "[untimed]") {
  const auto outcome =
      check_run(training({"--stages", "4", "--link", "tcp"}),
                {{5, {.stage = "stage-0", .with = {"stage-2"}}}}, sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 and stage-2 are replayed from step "));
}

TEST_CASE("Neighbours that lend the trainer their memory are replayed together, to no checkpoint",
          "[untimed]") {
  const scratch_folder folder;
  const auto outcome =
      check_run(training({"--stages", "3"}),
                {{4, {.stage = "stage-0", .with = {"stage-1"}}},
                 {8, {.stage = "stage-2", .with = {"stage-0"}}}},
                sequel::replayed, {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "2"});
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 and stage-1 are replayed from step ") &&
                              ContainsSubstring("stage-0 and stage-2 are replayed from step ") &&
                              !ContainsSubstring("the run goes back to"));
}

TEST_CASE("All stages of two replicas are lost at once, and replayed from what the trainer keeps",
          "[untimed]") {
  check_run(training({"--stages", "2", "--replicas", "2", "--zero", "1"}),
            {{5,
              {.stage = "stage-0 of replica 0",
               .with = {"stage-1 of replica 0", "stage-0 of replica 1", "stage-1 of replica 1"}}}},
            sequel::replayed);
}

TEST_CASE("A stage that is lost while it takes its place is replaced again") {
  const auto outcome =
      check_run(training({"--stages", "2"}), {{5, {.stage = "stage-1", .with = {"stage-1.2"}}}},
                sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.3"));
}

TEST_CASE("A replacement that does not join in time is replaced by another") {
  const auto outcome =
      check_hindered("TROUPE_HANGING_STAGE", std::chrono::seconds(20), {"--join-timeout", "5"});
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.2 has not joined the run within 5 s; ") &&
                              ContainsSubstring("join_timeout); it is replaced"));
}

TEST_CASE("A replacement that is stopped before it has joined is replaced within seconds") {
  const auto outcome = check_hindered("TROUPE_STOPPED_STAGE", std::chrono::seconds(5));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.2 was killed by signal 9 (SIGKILL): it had "
                                            "been stopped (SIGSTOP) for 1 s, and had not joined "
                                            "the run; it is replaced"));
}

TEST_CASE("Understudies take the places of lost stages, and others wait instead", "[untimed]") {
  // Steps of the large network take long enough that the next understudy is there when one is lost.
  const auto outcome = check_run(
      large_training({"--stages", "2", "--link", "tcp", "--understudies", "1"}),
      {{3, {.stage = "stage-1"}}, {5, {.stage = "understudy-1"}}, {7, {.stage = "stage-0"}}},
      sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("understudy-1 takes the place of stage-1") &&
                              ContainsSubstring("understudy-2 takes the place of understudy-1") &&
                              ContainsSubstring("understudy-3 takes the place of stage-0") &&
                              !ContainsSubstring("stage-1.2"));
}

TEST_CASE("Where more stages are lost than understudies wait, others are started", "[untimed]") {
  const auto outcome =
      check_run(large_training({"--stages", "4"}), {{5, {.stage = "stage-0", .with = {"stage-2"}}}},
                sequel::replayed, {"--understudies", "1"});
  CHECK_THAT(outcome.err, ContainsSubstring("understudy-1 takes the place of stage-0"));
}

TEST_CASE("A lost understudy does no harm, and takes nobody's place", "[untimed]") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    INFO(signal);
    const scratch_folder folder;
    const tests::scratch_memory memory;
    bool hit = false, killed = false, replayed = false, ended = false;
    const auto watch = [&](pid_t program, std::string_view line) {
      const auto is_first = [line](bool& before, bool now, std::string_view text) {
        return !std::exchange(before,
                              before || (now && line.find(text) != std::string_view::npos)) &&
               before;
      };
      if (is_first(hit, true, "step 1/")) CHECK(signal_to(program, "understudy-1", signal));
      if (is_first(killed, hit, "is lost, an understudy")) CHECK(signal_to(program, "stage-1"));
      const bool was_replayed = replayed;
      is_first(replayed, killed, " is replayed from step ");
      if (line.starts_with("step ") && is_first(ended, was_replayed, "step "))  // it goes on
        ::kill(program, SIGINT);
    };
    auto run = training({"--stages", "2", "--understudies", "1"});
    std::ranges::replace(run, std::string("12"), std::string("100000"));
    const auto outcome =
        run_program(with(with(run, recovering), {"--save", folder / "weights"}), watch);
    CHECK(outcome.code == 130);
    CHECK(ended);
    CHECK(fs::exists(folder / "weights"));
    CHECK_THAT(outcome.err, ContainsSubstring("stage-1 is replayed from step ") &&
                                !ContainsSubstring("understudy-1 takes"));
    CHECK(memory.left().size() <= 2);
  }
}

TEST_CASE("The only stage of a run is replaced from what the trainer keeps", "[untimed]") {
  check_run(training({"--stages", "1"}), {{3, {.stage = "stage-0"}}, {8, {.stage = "stage-0"}}},
            sequel::replayed);
}

TEST_CASE("A stage whose batch norms are synchronized over logical replicas is replayed",
          "[untimed]") {
  check_run(training({"--stages", "2", "--logical-replicas", "2", "--batch-norm", "sync"}),
            {{2, {.stage = "stage-0"}}, {4, {.stage = "stage-1"}}}, sequel::replayed);
}

TEST_CASE("A stage that is lost in an evaluation is replayed, and the evaluation goes on",
          "[untimed]") {
  const auto run = [](const words& schedule) {
    return with(evaluating({"--stages", "3", "--schedule"}, 10), schedule);
  };
  const calm_run calm(TROUPE_PROGRAM, run({"1f1b"}));
  for (const words& schedule : {words{"1f1b"}, words{"zb-h1", "--link", "tcp"},
                                words{"interleaved-1f1b", "--chunks", "2"}}) {
    INFO(schedule.front());
    const auto outcome = check_like(
        calm, run(schedule),
        {{3, {.stage = "stage-0"}}, {7, {.stage = "stage-1"}}, {11, {.stage = "stage-2"}}},
        sequel::replayed);
    check_replayed_within(outcome.err, "stage-0", "3");
    check_replayed_within(outcome.err, "stage-1", "6");
    check_replayed_within(outcome.err, "stage-2", "9");
  }
}

TEST_CASE("A stage that is stopped in an evaluation is replayed, and so is the only one of a run",
          "[untimed]") {
  check_evaluation(evaluating({"--stages", "2"}), {.stage = "stage-1", .signal = SIGSTOP});
  check_evaluation(evaluating({"--stages", "1"}), {.stage = "stage-0"});
}

TEST_CASE("Stages are replayed in an evaluation between the steps of an update, with a scale",
          "[untimed]") {
  check_evaluation(evaluating({"--stages", "2", "--accumulate", "2", "--clip-norm", "1",
                               "--loss-scale", "dynamic", "--loss-scale-interval", "2"}),
                   {.stage = "stage-1"});
}

TEST_CASE("Evaluations are made once, also where a stage is lost behind one, or two are lost",
          "[untimed]") {
  check_run(evaluating({"--stages", "2"}), {{4, {.stage = "stage-1"}}}, sequel::replayed);
  check_run(evaluating({"--stages", "4"}), {{3, {.stage = "stage-0", .with = {"stage-2"}}}},
            sequel::replayed);
}

TEST_CASE("Dropout and tied weights survive the loss of a stage, whatever the schedule",
          "[untimed]") {
  const auto run = [](const std::string& schedule) {
    return words{"--context",  "32",    "--batch-size", "16",  "--steps",   "12",
                 "--stages",   "2",     "--dropout",    "0.2", "--width",   "128",
                 "--heads",    "2",     "--layers",     "4",   "--no-eval", "--save-state",
                 "--schedule", schedule};
  };
  const calm_run calm(TROUPE_TRANSFORMER, run("1f1b"));
  for (const std::string schedule : {"1f1b", "interleaved-1f1b", "zb-v"}) {
    INFO(schedule);
    check_like(calm, TROUPE_TRANSFORMER, run(schedule),
               {{3, {.stage = "stage-1"}}, {6, {.stage = "stage-0"}}}, sequel::replayed);
  }
}

TEST_CASE("Stages that are lost with all versions of them go back to where the run began") {
  const auto outcome =
      check_run(training({"--stages", "2", "--loss-scale", "dynamic", "--link", "tcp"}),
                {{5, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::returned);
  CHECK_THAT(outcome.err, ContainsSubstring("the run goes back to where it began"));
}

TEST_CASE("Stages that are lost with all versions of them go back to the run's last checkpoint") {
  const scratch_folder folder;
  const auto outcome =
      check_run(training({"--stages", "2", "--loss-scale", "dynamic", "--link", "tcp"}),
                {{7, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::returned,
                {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "2"});
  CHECK_THAT(outcome.err, ContainsSubstring("the run goes back to its checkpoint of step "));
}

TEST_CASE("A checkpoint that a loss cuts off is written as soon as the run goes on") {
  const scratch_folder folder;
  // The stages are told to write step 6 when step 5 is over.
  const auto outcome =
      check_run(large_training({"--stages", "2"}), {{5, {.stage = "stage-1"}}}, sequel::replayed,
                {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "6"});
  CHECK(count_of(outcome.err, "warning: no checkpoint of step ") == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: no checkpoint of step 6: ") &&
                              ContainsSubstring("; one is written when the run goes on"));
  CHECK_FALSE(fs::exists(folder / "kept" / "step-000006"));
  CHECK(fs::exists(folder / "kept" / "step-000008"));
  CHECK(fs::exists(folder / "kept" / "step-000012"));
}

namespace {

/// Stages that are lost with all versions of them, behind step 5 or 9: the last checkpoint is
/// damaged before, and the next is not written yet.
program_outcome check_damaged(const fs::path& kept, const std::string& last, std::size_t lines) {
  // It is called by the saboteur's thread, which makes no assertions.
  bool found = false;
  const auto damage = [&] {
    found = tests::wait_until_there(kept / last);
    if (!found) return;
    for (const auto& each : fs::directory_iterator(kept / last))
      if (each.path().extension() == ".safetensors") fs::resize_file(each.path(), 50'000);
  };
  auto outcome =
      check_run(training({"--stages", "2", "--link", "tcp"}),
                {{lines, {.stage = "stage-0", .with = {"stage-1"}, .before = damage}}},
                sequel::returned, {"--checkpoint-dir", kept.string(), "--checkpoint-every", "4"});
  CHECK(found);
  for (const auto& each : fs::directory_iterator(kept / last))  // written once more
    if (each.path().extension() == ".safetensors") CHECK(each.file_size() > 50'000);
  return outcome;
}

}  // namespace

TEST_CASE(
    "Where the last checkpoint is damaged, a run without versions goes back to where it began") {
  const scratch_folder folder;
  const auto outcome = check_damaged(folder / "kept", "step-000004", 5);
  CHECK_THAT(outcome.err,
             ContainsSubstring("the run cannot go back to its checkpoint of step 4: ") &&
                 ContainsSubstring("the run goes back to where it began"));
}

TEST_CASE("Where the last checkpoint is damaged, a run goes back to the one before it") {
  const scratch_folder folder;
  const auto outcome = check_damaged(folder / "kept", "step-000008", 9);
  CHECK_THAT(outcome.err,
             ContainsSubstring("the run cannot go back to its checkpoint of step 8: ") &&
                 ContainsSubstring("the run goes back to its checkpoint of step 4"));
}

namespace {

const std::string spoiled = "step-000008/weights.stage-1.safetensors";

/// Stages that are lost with all versions of them, behind step 9, where the disk cannot read a file
/// of the last checkpoint. `how`: see with_unreadable.
program_outcome lose_all_behind_9(const words& how) {
  const scratch_folder folder;
  const auto kept = folder / "kept";
  bool found = false;
  std::error_code refused;  // the saboteur's thread makes no assertions
  const auto spoil = [&] {
    found = tests::wait_until_there(kept / "step-000008");
    fs::create_hard_link(kept / spoiled, folder / "bad", refused);
  };
  const auto run = training({"--stages", "2", "--link", "tcp"});
  auto outcome = check_like(
      calm_run(TROUPE_PROGRAM, without_ways(run)), "/usr/bin/env",
      tests::with_unreadable(folder / "bad",
                             with(run, {"--checkpoint-dir", kept, "--checkpoint-every", "4"}), how),
      {{9, {.stage = "stage-0", .with = {"stage-1"}, .before = spoil}}}, sequel::returned);
  CHECK(found);
  CHECK_FALSE(refused);
  return outcome;
}

/// It is passed over. `why`: what is said of that file.
void check_unreadable(const words& how, const std::string& why) {
  const auto outcome = lose_all_behind_9(how);
  const auto passed = outcome.err.find("the run cannot go back to its checkpoint of step 8: ");
  REQUIRE(passed != std::string::npos);
  CHECK(outcome.err.find(spoiled + why, passed) != std::string::npos);
  CHECK(outcome.err.find("the run goes back to its checkpoint of step 4", passed) !=
        std::string::npos);
}

}  // namespace

TEST_CASE("Where the disk cannot read the last checkpoint, a run goes back to the one before it") {
  check_unreadable({}, " cannot be read: Input/output error (tensor \"");
}

TEST_CASE(
    "Where a stage alone cannot read the last checkpoint, a run goes back to the one before") {
  check_unreadable(tests::to_stages, " cannot be read: Input/output error");
  check_unreadable(with(tests::to_stages, {"TROUPE_UNREADABLE_WRITTEN=1"}),
                   " was changed while it was to be read");
}

TEST_CASE("A run goes back to its last checkpoint though a stage could not read it once") {
  const auto outcome = lose_all_behind_9(with(tests::to_stages, {"TROUPE_UNREADABLE_TIMES=1"}));
  CHECK_THAT(outcome.err,
             ContainsSubstring(spoiled + " cannot be read: Input/output error; this checkpoint is "
                                         "checked and read once more") &&
                 !ContainsSubstring("the run cannot go back to its checkpoint"));
}

TEST_CASE("A stage that is lost again and again without progress ends the run") {
  const auto always = [](pid_t program, std::string_view line) {
    if (line.find("step 1/") == 0 || line.find("the run goes on after") != std::string_view::npos ||
        line.find(" replayed from step") != std::string_view::npos)
      CHECK(signal_to(program, "stage-1"));
  };
  const scratch_folder folder;
  auto run = training({"--stages", "2", "--save", folder / "weights"});
  std::ranges::replace(run, std::string("12"), std::string("100000"));
  const auto outcome = run_program(with(run, recovering), always);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("was killed by signal 9 (SIGKILL)") &&
                                      ContainsSubstring("times after step"));
}

TEST_CASE("Stages that nobody can replace are refused before the run") {
  const auto outcome = run_program(
      with(with(training({"--save", "weights"}), recovering), {"--stages-in", "threads"}));
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("--on-fault"));
}
