// A stage that is alive and does not get on with its work is said after seconds, with what it is
// at, and ended after --hang-timeout.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Matches;
using tests::children_of;
using tests::run_program;
using tests::wait_until_gone;
using steady = std::chrono::steady_clock;

std::vector<std::string> run_of(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> arguments{"--model",
                                     model,
                                     "--data",
                                     "synthetic:3x32x32:10:64",
                                     "--batch-size",
                                     "16",
                                     "--stages",
                                     "2",
                                     "--no-eval",
                                     "--threads-per-stage",
                                     "1",
                                     "--slow-after",
                                     "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// What was seen of a run while it went on.
struct observed {
  std::vector<pid_t> stages;
  steady::time_point last_step, warned;
  std::string warning;  // the first
};

/// Runs to the end and notes when the run took its last step and when it first warned, and then
/// does `act`.
tests::program_outcome watch(const std::vector<std::string>& arguments, observed& seen,
                             const std::function<void()>& act = {}) {
  return run_program(arguments, [&](pid_t program, std::string_view line) {
    if (line.starts_with("step ")) {
      seen.last_step = steady::now();
      if (seen.stages.empty()) seen.stages = children_of(program);
    }
    if (!seen.warning.empty() || !line.starts_with("warning: stage-")) return;
    seen.warning = line;
    seen.warned = steady::now();
    if (act) act();
  });
}

/// Runs a model of which one layer goes on when the run has warned of it. However much other work
/// holds up the layers before it, by which it is measured, the warning comes at some time.
tests::program_outcome watch_dawdling(const std::vector<std::string>& more, observed& seen) {
  const tests::scratch_folder folder;
  const auto until = folder / "until";
  REQUIRE(::setenv("TROUPE_DAWDLES_UNTIL", until.c_str(), 1) == 0);
  auto outcome = watch(run_of("dawdles", more), seen, [&] { std::ofstream{until}; });
  ::unsetenv("TROUPE_DAWDLES_UNTIL");
  return outcome;
}

double seconds(steady::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// A run of a model that hangs: warned of, and ended as one whose stage is lost.
void check_hang(const std::string& model, const std::string& schedule, const std::string& at) {
  const tests::scratch_memory memory;
  observed seen;
  const auto outcome = watch(
      run_of(model, {"--steps", "100000", "--schedule", schedule, "--hang-timeout", "3"}), seen);
  const auto ended = steady::now();
  WARN(model << ": warned after " << seconds(seen.warned - seen.last_step) << " s, ended after "
             << seconds(ended - seen.last_step) << " s: " << outcome.last_line());
  REQUIRE(seen.stages.size() == 2);
  CHECK_THAT(seen.warning, Matches("warning: stage-1 has been in " + at +
                                   ", for [0-9.]+ s \\(usually [0-9.]+ s\\)"));
  CHECK(seconds(seen.warned - seen.last_step) < 4);  // the floor is one
  CHECK(outcome.code == 1);
  CHECK(outcome.signal == 0);
  // As long as that, or somewhat longer where whoever looks is held up.
  CHECK_THAT(outcome.last_line(), Matches(".*stage-1 has been in " + at +
                                          ", for ([3-9]|1[0-3])[.][0-9]+ s .* longer than "
                                          "--hang-timeout allows \\(3.0 s\\).*"));
  CHECK(seconds(ended - seen.last_step) < 14);  // the timeout, the teardown, and a slow machine
  for (const auto stage : seen.stages) CHECK(wait_until_gone(stage));
  CHECK(memory.left().empty());
}

}  // namespace

TEST_CASE("A stage whose layer never returns is said with its layer, and ended by --hang-timeout") {
  check_hang("sleeps", "1f1b", "forward of micro-batch [0-9]+, step [0-9]+, layer layer4.1");
}

TEST_CASE("A stage whose thread is blocked in a backward is said, and ended by --hang-timeout") {
  check_hang("deadlocks", "1f1b", "backward of micro-batch [0-9]+, step [0-9]+, layer layer4.1");
  check_hang("deadlocks", "zb-h1",
             "input gradient of micro-batch [0-9]+, step [0-9]+, layer layer4.1");
}

TEST_CASE("A stage whose process is fine but for its work thread is said and ended all the same") {
  const tests::scratch_memory memory;
  observed seen;
  std::optional<tests::stopped_thread> stopped;
  int lines = 0;  // of steps; between the first two the stage has done each work several times
  steady::time_point begin;
  auto arguments = run_of("resnet18", {"--steps", "100000", "--hang-timeout", "3"});
  const auto outcome = run_program(arguments, [&](pid_t program, std::string_view line) {
    if (line.starts_with("warning: stage-") && seen.warning.empty()) {
      seen.warning = line;
      seen.warned = steady::now();
    }
    if (stopped || !line.starts_with("step ") || ++lines < 2) return;
    seen.stages = children_of(program);
    REQUIRE(seen.stages.size() == 2);
    stopped.emplace(tests::process_with_thread(seen.stages, "stage-1"), "stage-1");
    begin = steady::now();
  });
  const auto ended = steady::now();
  WARN("warned after " << seconds(seen.warned - begin) << " s, ended after "
                       << seconds(ended - begin) << " s: " << outcome.last_line());
  CHECK_THAT(seen.warning, ContainsSubstring("stage-1 has been in "));
  CHECK(seconds(seen.warned - begin) < 4);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("stage-1 has been in ") &&
                                      ContainsSubstring("longer than --hang-timeout allows"));
  for (const auto stage : seen.stages) CHECK(wait_until_gone(stage));
  CHECK(memory.left().empty());
}

TEST_CASE("A stage that is slow for once is said, and so is that it goes on", "[untimed]") {
  observed seen;
  const auto outcome = watch_dawdling({"--steps", "5", "--hang-timeout", "60"}, seen);
  CHECK(outcome.code == 0);
  CHECK_THAT(seen.warning, ContainsSubstring("stage-1 has been in forward of micro-batch") &&
                               ContainsSubstring("layer layer4.1"));
  CHECK_THAT(outcome.err, ContainsSubstring("info: stage-1 goes on: forward of micro-batch"));
}

TEST_CASE("A run that gets on with its work warns of nothing") {
  observed seen;
  auto arguments = run_of("resnet18", {"--steps", "20", "--hang-timeout", "60"});
  const auto outcome = watch(arguments, seen);
  CHECK(outcome.code == 0);
  CHECK(seen.warning.empty());
}

TEST_CASE("Stages in threads can be watched, but not ended for hanging", "[untimed]") {
  const auto refused = run_program({"--stages-in", "threads", "--hang-timeout", "5"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("--hang-timeout") && ContainsSubstring("put them in processes"));
  observed seen;
  const auto outcome = watch_dawdling({"--steps", "5", "--stages-in", "threads"}, seen);
  CHECK(outcome.code == 0);
  CHECK_THAT(seen.warning, ContainsSubstring("stage-1 has been in forward of micro-batch"));
}
