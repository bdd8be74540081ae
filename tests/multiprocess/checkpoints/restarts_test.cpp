// --max-restarts: a trainer whose process dies is started again by one that watches over it.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

words restarted(const scratch_folder& folder, const std::string& most, const words& more = {}) {
  return two_stages(with({"--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", "4",
                          "--resume", "auto", "--max-restarts", most, "--save", folder / "weights"},
                         more));
}

/// What stands behind `mark` in its line, which is there.
std::string behind(const std::string& mark, const std::string& text) {
  const auto at = text.find(mark);
  REQUIRE(at != text.npos);
  const auto from = at + mark.size();
  return text.substr(from, text.find('\n', from) - from);
}

pid_t trainer_of(pid_t watcher) {
  const auto children = children_of(watcher);
  REQUIRE(children.size() == 1);
  return children.front();
}

/// Kills a stage once a checkpoint is there, which a run does not survive that recovers nothing.
std::function<void(pid_t, std::string_view)> kill_stage_at(const std::string& name) {
  return at_line(name + " in ", [](pid_t program) {
    const auto stages = children_of(program);
    REQUIRE_FALSE(stages.empty());
    ::kill(stages.front(), SIGKILL);
  });
}

/// Kills the trainer at each line that holds `text`.
std::function<void(pid_t, std::string_view)> kill_at_each(const std::string& text) {
  return [text](pid_t watcher, std::string_view line) {
    if (line.find(text) != std::string_view::npos) ::kill(trainer_of(watcher), SIGKILL);
  };
}

}  // namespace

TEST_CASE("A run that was killed or has failed is resumed by the one command that it printed",
          "[untimed]") {
  const scratch_folder folder;
  const words kept{"--checkpoint-dir", folder / "it's here", "--checkpoint-every", "4",
                   "--save",           folder / "resumed"};
  const auto run = two_stages(kept);
  const auto killed = run_program(run, at_checkpoint("step-000004", SIGKILL));
  CHECK(killed.signal == SIGKILL);
  const auto command =
      behind("to resume this run from its last checkpoint, if it is lost: ", killed.err);
  CHECK(command.ends_with(" --resume latest"));
  const auto failed = run_other("/bin/sh", {"-c", "exec " + command}, kill_stage_at("step-000008"));
  INFO(failed.err);
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  CHECK_THAT(failed.last_line(), ContainsSubstring("SIGKILL"));
  CHECK(behind("to resume this run from step 8: ", failed.err) == command);
  const auto resumed = run_other("/bin/sh", {"-c", command});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  check_same_weights(calm.weights(), folder / "resumed");
}

TEST_CASE("A trainer that is killed is started again, and the run ends with the same bits") {
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto kill = [](pid_t watcher) { ::kill(trainer_of(watcher), SIGKILL); };
  const auto first = at_line("step-000004 in ", kill);
  const auto second = at_line("step-000008 in ", kill);
  const auto outcome = run_program(restarted(folder, "2"), [&](pid_t watcher, auto line) {
    first(watcher, line);
    second(watcher, line);
  });
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string again = "the trainer was killed by signal 9 (SIGKILL): it is started again ";
  CHECK_THAT(outcome.err, ContainsSubstring(again + "(restart 1 of 2)"));
  CHECK_THAT(outcome.err, ContainsSubstring(again + "(restart 2 of 2)"));
  CHECK_THAT(outcome.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("A trainer that dies once too often ends the run with its signal") {
  const scratch_folder folder;
  const auto outcome = run_program(restarted(folder, "1"), kill_at_each("step 1/12"));
  INFO(outcome.err);
  CHECK(outcome.code == 128 + SIGKILL);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("the trainer was killed by signal 9"));
}

TEST_CASE("An interrupt of the watching process ends the trainer in order, and starts no other") {
  const scratch_folder folder;
  for (const bool both : {false, true}) {
    std::filesystem::remove_all(folder / "checkpoints");
    const auto outcome =
        run_program(restarted(folder, "3"), at_line("step 3/", [both](pid_t watcher) {
                      const auto trainer = trainer_of(watcher);
                      ::kill(watcher, SIGTERM);
                      if (both) ::kill(trainer, SIGTERM);  // one interrupt, as from a scheduler
                    }));
    INFO(outcome.err);
    CHECK(outcome.code == 128 + SIGTERM);
    CHECK_THAT(outcome.err, !ContainsSubstring("started again"));
    CHECK(names_in(folder / "checkpoints").size() >= 1);
    CHECK(std::filesystem::remove(folder / "weights"));
  }
}

TEST_CASE("Nothing outlives a watching process that is killed") {
  const scratch_folder folder;
  std::vector<pid_t> all;
  const auto outcome =
      run_program(restarted(folder, "3"), at_line("step 3/", [&all](pid_t watcher) {
                    const auto trainer = trainer_of(watcher);
                    all = children_of(trainer);
                    CHECK(all.size() == 2);
                    all.push_back(trainer);
                    ::kill(watcher, SIGKILL);
                  }));
  CHECK(outcome.signal == SIGKILL);
  for (const auto each : all) CHECK(wait_until_gone(each));
}

TEST_CASE("Restarts without a checkpoint to continue from are refused") {
  const scratch_folder folder;
  for (const auto& more : {words{}, {"--checkpoint-dir", folder / "c", "--resume", "latest"}}) {
    const auto outcome = run_program(two_stages(with({"--max-restarts", "1"}, more)));
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(),
               ContainsSubstring("--max-restarts") && ContainsSubstring("--resume auto"));
  }
}
