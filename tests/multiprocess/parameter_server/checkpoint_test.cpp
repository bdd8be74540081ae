// A run of a parameter server that was interrupted goes on from its last checkpoint, also with
// another number of shards; `troupe checkpoint` works on what it wrote, and what does not fit is
// refused.

#include <ATen/ops/arange.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/parameter_server/server_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"
#include "tests/small_disk.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

program_outcome checkpoint_command(const words& more) {
  return run_other(TROUPE_COMMAND, with({"checkpoint"}, more));
}

}  // namespace

TEST_CASE("A parameter server's run goes on from a checkpoint with other shards to the same bits",
          "[untimed]") {
  const scratch_folder folder;
  const std::string kept = folder / "kept";
  const auto goes_on = [&](const words& run, const std::string& every, const std::string& at) {
    fs::remove_all(kept);
    const calm_run calm(TROUPE_PROGRAM, run);
    const words keeping{"--checkpoint-dir", kept, "--checkpoint-every", every};
    const auto killed = run_program(with(run, keeping), at_checkpoint(at, SIGKILL));
    CHECK(killed.signal == SIGKILL);
    for (const std::string shards : {"3", "1"}) {
      const auto resumed = run_program(
          with(run, {"--checkpoint-dir", kept, "--shards", shards, "--resume",
                     std::to_string(std::stoi(at.substr(5))), "--save", folder / "resumed"}));
      REQUIRE(resumed.code == 0);
      CHECK_THAT(resumed.err, ContainsSubstring("the run goes on from the checkpoint of step " +
                                                std::to_string(std::stoi(at.substr(5)))));
      check_same_weights(calm.weights(), folder / "resumed");
    }
  };
  goes_on(wide_run(300), "50", "step-000100");
  goes_on(residual_run(12), "2", "step-000004");
}

TEST_CASE("An interrupted run of a parameter server leaves a checkpoint and goes on", "[untimed]") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    const scratch_folder folder;
    const auto run = with(
        wide_run(600), {"--mode", mode, "--checkpoint-dir", folder / "kept", "--resume", "auto"});
    const auto interrupted =
        run_program(run, at_line("step 1/", [](pid_t program) { ::kill(program, SIGTERM); }));
    CHECK(interrupted.code == 143);
    CHECK_THAT(interrupted.err, ContainsSubstring("--resume latest goes on from there"));
    REQUIRE(names_in(folder / "kept").size() == 1);
    const auto resumed = run_program(with(run, {"--json", folder / "steps"}));
    REQUIRE(resumed.code == 0);
    const auto steps = steps_in(folder / "steps");
    const auto first = std::stoi(names_in(folder / "kept").begin()->substr(5)) + 1;
    CHECK(steps.front() == first);
    CHECK(steps.back() == 600);
    CHECK(steps.size() == static_cast<std::size_t>(601 - first));
    CHECK(run_program(run).code == 0);  // nothing is left to do
  }
}

TEST_CASE("A run that ends in an evaluation of a parameter server tells that when it goes on",
          "[untimed]") {
  const scratch_folder folder;
  const auto run = evaluated_run(6);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto whole = evaluations_in(calm.steps());
  REQUIRE(whole.size() == 3);
  const std::vector<std::pair<std::string, int>> moments{
      {"step 4/", SIGTERM}, {"step-000004 in ", SIGKILL}, {"the checkpoint of step 6 is", SIGKILL}};
  const std::string kept = folder / "kept";
  const auto keeping = with(
      run, {"--checkpoint-dir", kept, "--checkpoint-every", "2", "--resume", "auto", "--json"});
  for (const auto& [line, signal] : moments) {
    INFO(line);
    fs::remove_all(kept);
    const auto ended =
        run_program(with(keeping, {folder / "ended"}),
                    at_line(line, [signal = signal](pid_t program) { ::kill(program, signal); }));
    REQUIRE(ended.code + ended.signal != 0);
    const auto newest = *names_in(kept).rbegin();
    const auto resumed = run_program(with(keeping, {folder / "resumed"}));
    REQUIRE(resumed.code == 0);
    CHECK_THAT(resumed.err, ContainsSubstring("from the checkpoint of step " +
                                              std::to_string(std::stoi(newest.substr(5)))));
    CHECK(evaluations_in(folder / "ended", folder / "resumed") == whole);
  }
  CHECK_THAT(run_program(with(keeping, {folder / "again"})).err,
             ContainsSubstring("has all 6 steps of this run: nothing is left to do"));
}

TEST_CASE("A parameter server's checkpoints are listed, verified and exported", "[untimed]") {
  const scratch_folder folder;
  const std::string kept = folder / "kept";
  const auto outcome =
      run_program(with(residual_run(4), {"--checkpoint-dir", kept, "--checkpoint-every", "2",
                                         "--save", folder / "weights"}));
  REQUIRE(outcome.code == 0);
  CHECK(names_in(kept) == std::set<std::string>{"step-000002", "step-000004"});
  CHECK(checkpoint_command({"list", kept}).code == 0);
  CHECK(checkpoint_command({"verify", kept}).code == 0);
  REQUIRE(checkpoint_command({"export", kept, folder / "exported"}).code == 0);
  check_same_weights(folder / "weights", folder / "exported");
  // The second worker's running statistics are its own.
  const auto state =
      engine::load_safetensors(fs::path(kept) / "step-000004" / "state.server.safetensors");
  REQUIRE(state);
  CHECK(std::ranges::count(*state, "worker.1.bn1.running_mean", &engine::named_tensor::name) == 1);
}

TEST_CASE("A signal has a parameter server write a checkpoint and go on", "[untimed]") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    const scratch_folder folder;
    const auto outcome =
        run_program(with(wide_run(600), {"--mode", mode, "--checkpoint-dir", folder / "kept",
                                         "--checkpoint-on-signal", "SIGUSR1"}),
                    at_line("step 1/", [](pid_t program) { ::kill(program, SIGUSR1); }));
    CHECK(outcome.code == 0);
    CHECK(names_in(folder / "kept").size() == 2);
    CHECK(count_of(outcome.err, "the checkpoint of step ") == 2);
  }
}

TEST_CASE("A torn checkpoint, or one of other settings, is refused by a parameter server",
          "[untimed]") {
  const scratch_folder folder;
  const std::string kept = folder / "kept";
  const auto run = with(wide_run(6), {"--checkpoint-dir", kept});
  REQUIRE(run_program(with(run, {"--checkpoint-every", "2"})).code == 0);
  const auto refused = [&](const words& more, const words& expected) {
    const auto outcome = run_program(with(run, more));
    CHECK(outcome.code == 2);
    for (const auto& each : expected) CHECK_THAT(outcome.last_line(), ContainsSubstring(each));
  };
  refused({"--resume", "latest"}, {"has all 6 steps"});
  refused({"--resume", "4", "--workers", "4"}, {"server.workers = 2", "this one has 4"});
  refused({"--resume", "4", "--mode", "asynchronous"}, {"server.asynchronous = 0"});
  refused({"--resume", "4", "--bf16-gradients"}, {"server.bf16_gradients = 0"});
  refused({"--resume", "4", "--seed", "9"}, {"train.seed = 1"});
  const auto state = fs::path(kept) / "step-000004" / "state.server.safetensors";
  flip_a_bit(state);
  refused({"--resume", "4"}, {state.string(), "tensor \"optimizer.", "--resume 2"});
  fs::resize_file(fs::path(kept) / "step-000006" / "weights.server.safetensors", 1000);
  refused({"--resume", "latest"}, {"weights.server.safetensors has 1000 bytes", "--resume 2"});
}

TEST_CASE("A parameter server whose data have changed since its checkpoint is refused",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "data.safetensors";
  const auto write = [&](double of_first) {
    const auto images = at::arange(16 * 3 * 32 * 32, at::kFloat).remainder(7).view({16, 3, 32, 32});
    images[0].fill_(of_first);
    REQUIRE(engine::save_safetensors(
        file, {{"images", images}, {"labels", at::arange(16, at::kLong).remainder(10)}}));
  };
  const auto train = [&](int steps) {
    auto run = residual_run(steps);
    std::ranges::replace(run, std::string("synthetic:3x48x48:10:48"),
                         "safetensors:" + file.string());
    return run_program(with(run, {"--checkpoint-dir", folder / "kept", "--resume", "auto"}));
  };
  write(1);
  REQUIRE(train(2).code == 0);
  write(2);
  const auto changed = train(4);
  CHECK(changed.code == 2);
  CHECK_THAT(changed.last_line(), ContainsSubstring("has as many samples, but not the same") &&
                                      ContainsSubstring("--init FILE"));
  write(1);
  CHECK(train(4).code == 0);
}

TEST_CASE("A disk with no room for a parameter server's checkpoints is a warning, no end",
          "[untimed]") {
  const scratch_folder folder;
  // Enough to begin with, and less than the tables.
  const small_disk disk(folder / "disk", "size=128k");
  if (!disk.made()) SKIP("no file system can be mounted: " << disk.reason());
  const std::string where = folder / "disk";
  const auto outcome =
      run_program(with(wide_run(20), {"--checkpoint-dir", where, "--checkpoint-every", "10"}));
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("and the weights alone of one checkpoint need "));
  for (const auto* step : {"10", "20"})
    CHECK_THAT(outcome.err,
               ContainsSubstring(std::string("warning: no checkpoint of step ") + step + ": "));
  CHECK_THAT(outcome.err, ContainsSubstring("No space left on device; training goes on"));
  CHECK(names_in(where).empty());
}

TEST_CASE("A parameter server begins from a file of weights", "[untimed]") {
  const scratch_folder folder;
  REQUIRE(run_program(with(wide_run(20), {"--save", folder / "first"})).code == 0);
  const auto begun = run_program(
      with(wide_run(1, "1e-30"), {"--init", folder / "first", "--save", folder / "second"}));
  REQUIRE(begun.code == 0);
  check_same_weights(folder / "first", folder / "second");
  const auto other = run_program(with(residual_run(1), {"--init", folder / "first"}));
  CHECK(other.code == 2);
  CHECK_THAT(other.last_line(), ContainsSubstring("belongs to no layer"));
}
