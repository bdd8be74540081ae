// A parameter server that loses shards or its coordinator is built again, and its run goes on: a
// synchronous one to the bits of a run that nothing happened to.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "tests/multiprocess/parameter_server/server_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// Runs to the end while processes are lost, by the number of JSON lines.
program_outcome run_with(const words& run, const scratch_folder& folder,
                         std::map<std::size_t, fault> faults) {
  const auto all = faults.size();
  saboteur watch(folder / "steps", std::move(faults));
  const auto outcome = run_program(
      with(run,
           {"--on-fault", "recover", "--json", folder / "steps", "--save", folder / "weights"}),
      [&](pid_t program, std::string_view line) { watch(program, line); });
  CHECK(outcome.code == 0);
  CHECK(watch.done() == all);
  return outcome;
}

/// Each step of a run is told once, in order.
void check_steps(const scratch_folder& folder, int count) {
  std::vector<int> expected(static_cast<std::size_t>(count));
  std::iota(expected.begin(), expected.end(), 1);
  CHECK(steps_in(folder / "steps") == expected);
}

words keeping(const words& run, const scratch_folder& folder, const std::string& every) {
  return with(run, {"--checkpoint-dir", folder / "kept", "--checkpoint-every", every});
}

}  // namespace

TEST_CASE("A synchronous run that loses shards and the coordinator goes on to the same bits",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = wide_run(400);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto outcome =
      run_with(keeping(run, folder, "50"), folder,
               {{10, {"shard-1"}}, {120, {"shard-0"}}, {220, {"shard-1", SIGKILL, {"shard-0"}}}});
  check_same_weights(calm.weights(), folder / "weights");
  check_steps(folder, 400);
  CHECK_THAT(outcome.err, ContainsSubstring("shard-1 was killed by signal 9 (SIGKILL): other "
                                            "processes replace shard-1, and the run goes on from "
                                            "its beginning"));
  CHECK_THAT(outcome.err, ContainsSubstring("shard-0 was killed by signal 9 (SIGKILL): other "
                                            "processes replace shard-0, and the run goes on from "
                                            "its checkpoint of step "));
  CHECK(count_of(outcome.err, "the run goes on from its checkpoint of step ") >= 2);
}

TEST_CASE("Where the last checkpoint is damaged, a lost shard goes on from the one before it",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = wide_run(400);
  const calm_run calm(TROUPE_PROGRAM, run);
  const std::filesystem::path kept = folder / "kept";
  // It is called by the saboteur's thread, which makes no assertions.
  bool is_damaged = false;
  const auto damage = [&] {
    std::error_code absent;
    const auto last = kept / "step-000200";
    is_damaged = wait_until_there(last);
    std::filesystem::resize_file(last / "weights.server.safetensors", 1000, absent);
    is_damaged = is_damaged && !absent;
  };
  const auto outcome = run_with(keeping(run, folder, "100"), folder,
                                {{210, {.stage = "shard-1", .before = damage}}});
  CHECK(is_damaged);
  CHECK_THAT(outcome.err,
             ContainsSubstring("the run cannot go back to its checkpoint of step 200: ") &&
                 ContainsSubstring("the run goes on from its checkpoint of step 100\n"));
  check_same_weights(calm.weights(), folder / "weights");
  check_steps(folder, 400);
  // Which is written once more.
  CHECK(names_in(kept) == std::set<std::string>{"step-000200", "step-000300", "step-000400"});
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", kept.string()}).code == 0);
}

TEST_CASE("A server whose trainer is killed is started again, and ends with the same bits",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = wide_run(400);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto kill_trainer = [](pid_t watcher) {
    const auto children = children_of(watcher);
    REQUIRE(children.size() == 1);
    ::kill(children.front(), SIGKILL);
  };
  const auto outcome =
      run_program(with(keeping(run, folder, "100"),
                       {"--resume", "auto", "--max-restarts", "1", "--save", folder / "weights"}),
                  at_line("step-000100 in ", kill_trainer));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("(restart 1 of 1)") &&
                              ContainsSubstring("the run goes on from the checkpoint of step "));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("Running statistics and Adam's state go on where a lost shard left them", "[untimed]") {
  const scratch_folder folder;
  const auto run = residual_run(12);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto outcome = run_with(keeping(run, folder, "2"), folder, {{5, {"shard-0"}}});
  check_same_weights(calm.weights(), folder / "weights");
  check_steps(folder, 12);
}

TEST_CASE("An evaluation in which a shard is lost is told once, as each other one", "[untimed]") {
  const scratch_folder folder;
  const auto run = evaluated_run(6);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto whole = evaluations_in(calm.steps());
  const auto check_told = [&](const std::string& json) {
    CHECK(steps_in(folder / json) == std::vector<int>{1, 2, 0, 3, 4, 0, 5, 6, 0});
    CHECK(evaluations_in(folder / json) == whole);
  };
  const auto kept = keeping(run, folder, "2");
  // While steps 4 and 6 are evaluated, and as soon as there is a checkpoint of step 4.
  INFO(run_with(kept, folder, {{5, {"shard-1"}}, {8, {"shard-0"}}}).err);
  check_told("steps");
  const auto kill = [](pid_t program) { CHECK(signal_to(program, "shard-1")); };
  const auto outcome =
      run_program(with(kept, {"--on-fault", "recover", "--json", folder / "again"}),
                  at_line("step-000004 in ", kill));
  CHECK(outcome.code == 0);
  check_told("again");
}

TEST_CASE("A shard that is stopped is replaced, and without checkpoints the run begins again",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = wide_run(400);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto outcome = run_with(run, folder, {{30, {"shard-1", SIGSTOP}}});
  check_same_weights(calm.weights(), folder / "weights");
  check_steps(folder, 400);
  CHECK_THAT(outcome.err, ContainsSubstring("other processes replace shard-1, and the run goes on "
                                            "from its beginning; checkpoints ([checkpoint] dir) "
                                            "would have kept what was done"));
}

TEST_CASE("A shard whose thread hangs is replaced with --hang-timeout", "[untimed]") {
  const scratch_folder folder;
  std::optional<stopped_thread> stopped;
  const auto outcome = run_program(
      with(keeping(wide_run(600), folder, "200"),
           {"--on-fault", "recover", "--slow-after", "1", "--hang-timeout", "4"}),
      [&](pid_t program, std::string_view line) {
        if (stopped || !line.starts_with("step ")) return;
        stopped.emplace(process_with_thread(children_of(program), "shard-1"), "shard-1");
      });
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("longer than --hang-timeout allows (4.0 s): other "
                                            "processes replace shard-1, and the run goes on"));
}

TEST_CASE("An asynchronous run that loses a shard and the coordinator applies every step",
          "[untimed]") {
  const scratch_folder folder;
  const auto outcome = run_with(
      keeping(with(wide_run(600), {"--mode", "asynchronous", "--staleness", "2"}), folder, "50"),
      folder, {{80, {"shard-1"}}, {280, {"shard-0"}}});
  check_steps(folder, 600);
  CHECK(count_of(outcome.err, "the run goes on from its checkpoint of step ") == 2);
  CHECK(names_in(folder / "kept").contains("step-000600"));
}

TEST_CASE("Workers that were lost before a shard are replaced with it", "[untimed]") {
  const scratch_folder folder;
  const auto run = wide_run(400);
  const calm_run calm(TROUPE_PROGRAM, run);
  // Nothing is kept before the worker is lost, so that the run goes back to all workers' steps.
  const auto outcome = run_with(run, folder, {{20, {"worker-1"}}, {60, {"shard-1"}}});
  check_same_weights(calm.weights(), folder / "weights");
  CHECK_THAT(outcome.err, ContainsSubstring("worker-1 is lost; going on with 1") &&
                              ContainsSubstring("shard-1 was killed by signal 9 (SIGKILL): other "
                                                "processes replace shard-1 and worker-1"));
}
