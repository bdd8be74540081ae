// A run that loses stages goes on with other processes, to the bits of a run that nothing happened
// to.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::check_same_weights;
using tests::count_of;
using tests::fault;
using tests::process_of;
using tests::program_outcome;
using tests::run_other;
using tests::run_program;
using tests::saboteur;
using tests::scratch_folder;
using tests::steps_in;
using tests::with;
using tests::words;

/// An optimizer with state, a rate that follows a curve, norms that couple the stages, and an
/// update every second step.
words training(const words& more, int steps = 12, int accumulate = 2) {
  return with(tests::training({"--clip-norm", "1", "--save-state"}, steps, accumulate), more);
}

/// The losses that they tell, as they are written, and what evaluations have found.
words losses_in(const fs::path& json) {
  words losses;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);) {
    const auto at = line.find("\"loss\":");
    losses.push_back(at == std::string::npos ? line : line.substr(at, line.find(',', at) - at));
  }
  return losses;
}

const words recovering{"--on-fault", "recover"};

/// How a run goes on after its faults.
enum class sequel {
  replayed,  ///< Each time the lost stage alone is replayed, and nothing is computed again.
  returned,  ///< Each time all stages go back.
  either,
};

void check_sequel(const std::string& log, std::size_t faults, sequel expected) {
  const auto replays = static_cast<std::size_t>(count_of(log, " is replayed from step "));
  const auto returns = static_cast<std::size_t>(count_of(log, "the run goes on behind step"));
  CHECK(replays + returns == faults);
  if (expected == sequel::replayed) {
    CHECK(replays == faults);
    CHECK_THAT(log, ContainsSubstring("the processes that were left computed 0 actions again"));
  }
  if (expected == sequel::returned) CHECK(returns == faults);
}

/// A run that nothing happens to.
class calm_run {
 public:
  calm_run(const std::string& program, const words& run) {
    const auto outcome =
        run_other(program, with(run, {"--save", weights(), "--json", folder_ / "calm.json"}));
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
  }

  [[nodiscard]] fs::path weights() const { return folder_ / "calm"; }
  [[nodiscard]] fs::path state() const { return folder_ / "calm.state.safetensors"; }
  [[nodiscard]] fs::path steps() const { return folder_ / "calm.json"; }

 private:
  scratch_folder folder_;
};

/// A run with faults has the weights and state of one without, and tells the same steps: `run` is
/// its command line, the faults come after so many steps.
program_outcome check_like(const calm_run& calm, const std::string& program, const words& run,
                           const std::map<std::size_t, fault>& faults, sequel expected) {
  const scratch_folder folder;
  const tests::scratch_memory memory;
  saboteur watch(folder / "stormy.json", faults);
  const auto outcome = run_other(
      program,
      with(with(run, recovering), {"--save", folder / "stormy", "--json", folder / "stormy.json"}),
      std::ref(watch));
  UNSCOPED_INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(watch.done() == faults.size());
  check_sequel(outcome.err, faults.size(), expected);
  CHECK_THAT(outcome.err, !ContainsSubstring("was computed again, and its loss is") &&
                              !ContainsSubstring("is not what it was before"));
  CHECK(steps_in(folder / "stormy.json") == steps_in(calm.steps()));
  CHECK(losses_in(folder / "stormy.json") == losses_in(calm.steps()));
  check_same_weights(calm.weights(), folder / "stormy");
  check_same_weights(calm.state(), folder / "stormy.state.safetensors");
  std::size_t lost = 0;
  for (const auto& [step, what] : faults) lost += 1 + what.with.size();
  CHECK(memory.left().size() <= lost);
  return outcome;
}

program_outcome check_like(const calm_run& calm, const words& run,
                           const std::map<std::size_t, fault>& faults, sequel expected) {
  return check_like(calm, TROUPE_PROGRAM, run, faults, expected);
}

/// The same beside a calm run of the same command line. `more`: for the run with faults alone.
program_outcome check_run(const std::string& program, const words& run,
                          const std::map<std::size_t, fault>& faults, sequel expected,
                          const words& more = {}) {
  return check_like(calm_run(program, run), program, with(run, more), faults, expected);
}

program_outcome check_run(const words& run, const std::map<std::size_t, fault>& faults,
                          sequel expected, const words& more = {}) {
  return check_run(TROUPE_PROGRAM, run, faults, expected, more);
}

}  // namespace

TEST_CASE("A run whose stages are killed goes on to the bits of one that nothing happened to") {
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

TEST_CASE("Whichever stage is lost, only that one is replayed, whatever the schedule") {
  const auto run = [](const words& schedule) {
    return with(training({"--stages", "3", "--schedule"}, 8, 1), schedule);
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

TEST_CASE("A stage is replayed with a dynamic loss scale that falls and rises") {
  const auto run =
      training({"--stages", "2", "--loss-scale", "dynamic", "--loss-scale-interval", "2"}, 10, 1);
  const calm_run calm(TROUPE_PROGRAM, run);
  for (const std::string stage : {"stage-0", "stage-1"})
    check_like(calm, run, {{3, {.stage = stage}}, {6, {.stage = stage}}}, sequel::replayed);
}

TEST_CASE("A run goes on however often it loses a stage, if it comes forward in between") {
  check_run(training({"--stages", "3", "--schedule", "zb-h1"}),
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
  check_run(training({"--stages", "3"}), {{5, both}, {6, both}, {7, both}, {8, both}, {9, both}},
            sequel::returned, {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "100"});
}

TEST_CASE("All of many stages are lost at once, found out one by one, and replaced") {
  check_run(training({"--stages", "5"}),
            {{5, {.stage = "stage-4", .with = {"stage-2", "stage-0", "stage-3", "stage-1"}}}},
            sequel::returned);
}

TEST_CASE("A stage that is stopped is replaced like one that is dead") {
  const auto outcome = check_run(training({"--stages", "2"}),
                                 {{4, {.stage = "stage-1", .signal = SIGSTOP}}}, sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("is replaced"));
}

TEST_CASE("Stages that are lost together are replaced together, where they are no neighbours") {
  check_run(training({"--stages", "4"}), {{5, {.stage = "stage-0", .with = {"stage-2"}}}},
            sequel::returned);
}

TEST_CASE("A stage that is lost while it takes its place is replaced again") {
  const auto outcome =
      check_run(training({"--stages", "2"}), {{5, {.stage = "stage-1", .with = {"stage-1.2"}}}},
                sequel::returned);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.3"));
}

TEST_CASE("A replacement that does not join in time is replaced by another") {
  scratch_folder folder;
  bool killed = false, stopped = false;
  const auto stop_the_next = [&](pid_t program, std::string_view line) {
    if (!std::exchange(killed, killed || line.find("step 5/") == 0) && killed)
      ::kill(process_of(program, "stage-1"), SIGKILL);
    if (stopped || line.find("it is replaced") == std::string_view::npos) return;
    while (!(stopped = process_of(program, "stage-1.2") != 0))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(process_of(program, "stage-1.2"), SIGSTOP);
  };
  const auto outcome = run_program(with(with(training({"--stages", "2"}), recovering),
                                        {"--save", folder / "weights", "--join-timeout", "3"}),
                                   stop_the_next);
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.2 has not joined the run within 3 s; it is "
                                            "replaced"));
  const auto calm = run_program(training({"--stages", "2", "--save", folder / "calm"}));
  REQUIRE(calm.code == 0);
  check_same_weights(folder / "calm", folder / "weights");
}

TEST_CASE("Understudies take the places of lost stages, and others wait instead") {
  const calm_run calm(TROUPE_PROGRAM, training({"--stages", "2"}));
  for (const std::string link : {"shm", "tcp"}) {
    const auto outcome = check_like(
        calm, training({"--stages", "2", "--link", link, "--understudies", "1"}),
        {{3, {.stage = "stage-1"}}, {5, {.stage = "understudy-1"}}, {7, {.stage = "stage-0"}}},
        sequel::replayed);
    CHECK_THAT(outcome.err, ContainsSubstring("understudy-1 takes the place of stage-1") &&
                                ContainsSubstring("understudy-2 takes the place of understudy-1") &&
                                ContainsSubstring("understudy-3 takes the place of stage-0") &&
                                !ContainsSubstring("stage-1.2"));
  }
}

TEST_CASE("Where more stages are lost than understudies wait, others are started") {
  const auto outcome =
      check_run(training({"--stages", "4"}), {{5, {.stage = "stage-0", .with = {"stage-2"}}}},
                sequel::returned, {"--understudies", "1"});
  CHECK_THAT(outcome.err, ContainsSubstring("understudy-1 takes the place of stage-0"));
}

TEST_CASE("A lost understudy does no harm, and takes nobody's place") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    INFO(signal);
    const scratch_folder folder;
    const tests::scratch_memory memory;
    bool hit = false, killed = false;
    const auto watch = [&](pid_t program, std::string_view line) {
      if (!std::exchange(hit, hit || line.find("step 1/") == 0) && hit)
        ::kill(process_of(program, "understudy-1"), signal);
      if (!std::exchange(killed, killed || (hit && line.find("is lost, an understudy") !=
                                                       std::string_view::npos)) &&
          killed)
        ::kill(process_of(program, "stage-1"), SIGKILL);
    };
    auto run = training({"--stages", "2", "--understudies", "1"});
    std::ranges::replace(run, std::string("12"), std::string("100"));
    const auto outcome =
        run_program(with(with(run, recovering), {"--save", folder / "weights"}), watch);
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(killed);
    CHECK_THAT(outcome.err, ContainsSubstring("stage-1 is replayed from step ") &&
                                !ContainsSubstring("understudy-1 takes"));
    CHECK(memory.left().size() <= 2);
  }
}

TEST_CASE("The only stage of a run is replaced from what the trainer keeps") {
  check_run(training({"--stages", "1"}), {{3, {.stage = "stage-0"}}, {8, {.stage = "stage-0"}}},
            sequel::replayed);
}

TEST_CASE("Replicas and a dynamic loss scale survive the loss of a stage") {
  check_run(training({"--stages", "2", "--replicas", "2", "--loss-scale", "dynamic",
                      "--loss-scale-interval", "3"}),
            {{3, {.stage = "stage-0 of replica 1"}}, {7, {.stage = "stage-1 of replica 0"}}},
            sequel::returned);
}

TEST_CASE("Replicas that share out the optimizer's state survive the loss of a stage") {
  check_run(training({"--stages", "2", "--replicas", "2", "--zero", "1", "--loss-scale", "dynamic",
                      "--loss-scale-interval", "3"}),
            {{3, {.stage = "stage-0 of replica 1"}}, {7, {.stage = "stage-1 of replica 0"}}},
            sequel::returned);
}

TEST_CASE("A stage whose batch norms are synchronized over logical replicas is replayed") {
  check_run(training({"--stages", "2", "--logical-replicas", "2", "--batch-norm", "sync"}),
            {{2, {.stage = "stage-0"}}, {4, {.stage = "stage-1"}}}, sequel::replayed);
}

TEST_CASE("Replicas whose batch norms are synchronized survive the loss of a stage") {
  check_run(training({"--stages", "2", "--replicas", "2", "--batch-norm", "sync"}),
            {{3, {.stage = "stage-0 of replica 1"}}, {7, {.stage = "stage-1 of replica 0"}}},
            sequel::returned);
}

namespace {

/// An evaluation after every third step.
words evaluating(const words& more, int steps = 6) {
  return with({"--model", "resnet18", "--data", "synthetic:3x32x32:10:48", "--batch-size", "8",
               "--micro-batches", "4", "--optimizer", "adam", "--eval-every", "3", "--save-state",
               "--steps", std::to_string(steps)},
              more);
}

/// In the evaluation after that step.
void check_replayed_within(const std::string& log, const std::string& stage,
                           const std::string& step) {
  const auto evaluated = log.find("evaluation after step " + step);
  CHECK(log.find(stage + " is replayed from step " + step) < evaluated);
  CHECK(count_of(log, "evaluation after step " + step) == 1);
}

/// A run that loses a stage as soon as the step before an evaluation is over.
void check_evaluation(const words& run, const fault& what) {
  const auto outcome = check_run(run, {{3, what}}, sequel::replayed);
  check_replayed_within(outcome.err, what.stage, "3");
}

}  // namespace

TEST_CASE("A stage that is lost in an evaluation is replayed, and the evaluation goes on") {
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

TEST_CASE("A stage that is stopped in an evaluation is replayed, and so is the only one of a run") {
  check_evaluation(evaluating({"--stages", "2"}), {.stage = "stage-1", .signal = SIGSTOP});
  check_evaluation(evaluating({"--stages", "1"}), {.stage = "stage-0"});
}

TEST_CASE("Stages are replayed in an evaluation between the steps of an update, with a scale") {
  check_evaluation(evaluating({"--stages", "2", "--accumulate", "2", "--clip-norm", "1",
                               "--loss-scale", "dynamic", "--loss-scale-interval", "2"}),
                   {.stage = "stage-1"});
}

TEST_CASE("Evaluations are made once, also where a stage is lost behind one, or two are lost") {
  check_run(evaluating({"--stages", "2"}), {{4, {.stage = "stage-1"}}}, sequel::replayed);
  check_run(evaluating({"--stages", "4"}), {{3, {.stage = "stage-0", .with = {"stage-2"}}}},
            sequel::returned);
}

TEST_CASE("Dropout and tied weights survive the loss of a stage") {
  const scratch_folder folder;
  const std::string text = folder / "text.txt";
  std::ofstream out(text);
  for (int i = 0; i < 4000; ++i) out << "All the world is a stage, number " << i;
  out.close();
  check_run(TROUPE_TRANSFORMER,
            {"--data",    "text:" + text, "--context", "64",        "--batch-size",
             "16",        "--steps",      "12",        "--stages",  "2",
             "--dropout", "0.2",          "--width",   "128",       "--heads",
             "2",         "--layers",     "4",         "--no-eval", "--save-state"},
            {{3, {.stage = "stage-1"}}, {6, {.stage = "stage-0"}}}, sequel::replayed);
}

TEST_CASE("Stages that are lost with all versions of them go back to where the run began") {
  const auto outcome =
      check_run(training({"--stages", "2", "--loss-scale", "dynamic"}),
                {{5, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::returned);
  CHECK_THAT(outcome.err, ContainsSubstring("the run goes back to where it began"));
}

TEST_CASE("Stages that are lost with all versions of them go back to the run's last checkpoint") {
  const scratch_folder folder;
  const auto outcome = check_run(training({"--stages", "2", "--loss-scale", "dynamic"}),
                                 {{7, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::returned,
                                 {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "2"});
  CHECK_THAT(outcome.err, ContainsSubstring("the run goes back to its checkpoint of step "));
}

TEST_CASE("A checkpoint that a loss cuts off is written as soon as the run goes on") {
  const scratch_folder folder;
  // The stages are told to write step 6 when step 5 is over.
  const auto outcome =
      check_run(training({"--stages", "2"}), {{5, {.stage = "stage-1"}}}, sequel::replayed,
                {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "6"});
  CHECK(count_of(outcome.err, "warning: no checkpoint of step ") == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: no checkpoint of step 6: ") &&
                              ContainsSubstring("; one is written when the run goes on"));
  CHECK_FALSE(fs::exists(folder / "kept" / "step-000006"));
  CHECK(fs::exists(folder / "kept" / "step-000008"));
  CHECK(fs::exists(folder / "kept" / "step-000012"));
}

TEST_CASE(
    "Where the last checkpoint is damaged, a run without versions goes back to where it began") {
  const scratch_folder folder;
  // The stages have not written the next one by then.
  const auto damage = [&] {
    const auto last = folder / "kept" / "step-000004";
    tests::wait_for_file(last);
    for (const auto& each : fs::directory_iterator(last))
      if (each.path().extension() == ".safetensors") fs::resize_file(each.path(), 100'000);
  };
  const auto outcome =
      check_run(training({"--stages", "2"}),
                {{7, {.stage = "stage-0", .with = {"stage-1"}, .before = damage}}},
                sequel::returned, {"--checkpoint-dir", folder / "kept", "--checkpoint-every", "4"});
  CHECK_THAT(outcome.err, ContainsSubstring("the run cannot go back to its last checkpoint") &&
                              ContainsSubstring("the run goes back to where it began"));
}

TEST_CASE("A stage that is lost again and again without progress ends the run") {
  const auto always = [](pid_t program, std::string_view line) {
    if (line.find("step 1/") == 0 ||
        line.find("the run goes on behind") != std::string_view::npos ||
        line.find("is replayed from step") != std::string_view::npos)
      ::kill(process_of(program, "stage-1"), SIGKILL);
  };
  const scratch_folder folder;
  auto run = training({"--stages", "2", "--save", folder / "weights"});
  std::ranges::replace(run, std::string("12"), std::string("100000"));
  const auto outcome = run_program(with(run, recovering), always);
  INFO(outcome.err);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("was killed by signal 9 (SIGKILL)") &&
                                      ContainsSubstring("times behind step"));
}

TEST_CASE("Stages that nobody can replace are refused before the run") {
  for (const words& wrong : {words{"--stages-in", "threads"}, words{"--data-node", "stage-0"}}) {
    const auto outcome =
        run_program(with(with(training({"--save", "weights"}), recovering), wrong));
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("--on-fault"));
  }
}
