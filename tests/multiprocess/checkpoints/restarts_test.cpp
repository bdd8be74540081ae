// --max-restarts: a trainer whose process dies is started again by one that watches over it.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/checkpoints/run_on_terminal.hpp"
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
line_handler kill_stage_at(const std::string& name) {
  return at_line(name + " in ", [](pid_t program) {
    const auto stages = children_of(program);
    REQUIRE_FALSE(stages.empty());
    ::kill(stages.front(), SIGKILL);
  });
}

/// The steps of a run's JSON lines with their losses; each trainer goes on behind the step that its
/// line names, and what is told twice has the same loss.
std::map<std::uint64_t, double> losses_of_all_trainers(const std::filesystem::path& json,
                                                       std::uint32_t restarts) {
  std::map<std::uint64_t, double> losses;
  std::uint64_t last = 0;
  std::uint32_t restart = 0;
  std::ifstream in(json);
  for (std::string text; std::getline(in, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line.contains("restart")) {
      CHECK(line.at("restart").get<std::uint32_t>() == ++restart);
      const auto after = line.at("after_step").get<std::uint64_t>();
      CHECK(after <= last);
      last = after;
      continue;
    }
    CHECK(line.at("step").get<std::uint64_t>() == ++last);
    const auto loss = line.at("loss").get<double>();
    CHECK(losses.try_emplace(last, loss).first->second == loss);
  }
  CHECK(restart == restarts);
  return losses;
}

/// Kills the trainer at each line that holds `text`.
line_handler kill_at_each(const std::string& text) {
  return [text](pid_t watcher, std::string_view line) {
    if (line.find(text) != std::string_view::npos) ::kill(trainer_of(watcher), SIGKILL);
  };
}

/// Whether a process has another child than these within a second.
bool starts_another(pid_t parent, const std::vector<pid_t>& known) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end) {
    for (const auto each : children_of(parent))
      if (std::ranges::find(known, each) == known.end()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Kills the trainer, and has the watching process wait before it starts another one.
void hold_between_trainers(run_on_terminal& run) {
  REQUIRE(run.prints("step 1/12"));
  run.hold_output();  // and so the watching process, once it tells of the trainer's end
  const auto trainer = trainer_of(run.pid());
  ::kill(trainer, SIGKILL);
  REQUIRE(wait_until_gone(std::filesystem::path("/proc/" + std::to_string(trainer))));
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
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  CHECK_THAT(failed.last_line(), ContainsSubstring("SIGKILL"));
  CHECK(behind("to resume this run from step 8: ", failed.err) == command);
  const auto resumed = run_other("/bin/sh", {"-c", command});
  REQUIRE(resumed.code == 0);
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  check_same_weights(calm.weights(), folder / "resumed");
}

TEST_CASE("A trainer that is killed is started again, and the run ends with the same bits") {
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto kill = [](pid_t watcher) { ::kill(trainer_of(watcher), SIGKILL); };
  write_text(folder / "steps", "of another run\n");
  const auto outcome = run_program(
      restarted(folder, "2", {"--json", folder / "steps"}),
      one_after_other(at_line("step-000004 in ", kill), at_line("step-000008 in ", kill)));
  REQUIRE(outcome.code == 0);
  const std::string again = "the trainer was killed by signal 9 (SIGKILL): it is started again ";
  CHECK_THAT(outcome.err, ContainsSubstring(again + "(restart 1 of 2)"));
  CHECK_THAT(outcome.err, ContainsSubstring(again + "(restart 2 of 2)"));
  CHECK_THAT(outcome.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(losses_of_all_trainers(folder / "steps", 2) == losses_of_all_trainers(calm.steps(), 0));
  CHECK(bytes_of(folder / "steps.old") == "of another run\n");
  CHECK_FALSE(std::filesystem::exists(folder / "steps.old-2"));
}

TEST_CASE("A later trainer that is refused what the first one was not is started again") {
  const scratch_folder folder;
  const std::filesystem::path kept = folder / "checkpoints";
  const std::filesystem::path aside = folder / "aside";
  const auto lose_folder = at_line("step-000004 in ", [&](pid_t watcher) {
    std::filesystem::rename(kept, aside);
    write_text(kept, "no folder\n");
    ::kill(trainer_of(watcher), SIGKILL);
  });
  const auto give_back = at_line("(restart 2 of 3)", [&](pid_t) {
    std::filesystem::remove(kept);
    std::filesystem::rename(aside, kept);
  });
  const auto outcome = run_program(restarted(folder, "3"), one_after_other(lose_folder, give_back));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("exited with code 2: it is started again (restart 2 of 3)") &&
                 ContainsSubstring("goes on from the checkpoint of step ") &&
                 !ContainsSubstring("(restart 3 of 3)"));
  CHECK(std::filesystem::exists(folder / "weights"));
}

TEST_CASE("Another trainer begins when all processes of the lost one have ended, and not before") {
  const scratch_folder folder;
  const auto outcome =
      run_program(restarted(folder, "1"), at_line("step 3/", [](pid_t watcher) {
                    const auto trainer = trainer_of(watcher);
                    auto known = children_of(trainer);
                    const held_up_end held(process_with_thread(known, "stage-1"), "stage-1");
                    known.push_back(trainer);
                    ::kill(trainer, SIGKILL);
                    CHECK_FALSE(starts_another(watcher, known));
                  }));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("(restart 1 of 1)") && !ContainsSubstring("has not ended"));
}

TEST_CASE("A trainer that dies once too often ends the run with its signal") {
  const scratch_folder folder;
  const auto outcome = run_program(restarted(folder, "1"), kill_at_each("step 1/12"));
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
    CHECK(outcome.code == 128 + SIGTERM);
    CHECK_THAT(outcome.err, !ContainsSubstring("started again"));
    CHECK(names_in(folder / "checkpoints").size() >= 1);
    CHECK(std::filesystem::remove(folder / "weights"));
  }
}

TEST_CASE("A Ctrl-C that comes between two trainers ends the second one") {
  const scratch_folder folder;
  run_on_terminal run(restarted(folder, "3"));
  hold_between_trainers(run);
  run.type('\x03');
  REQUIRE(run.has_waiting(SIGINT));
  run.release_output();
  CHECK(run.exit_code() == 128 + SIGINT);
}

TEST_CASE("A signal for a checkpoint that comes between two trainers ends none of them") {
  const scratch_folder folder;
  run_on_terminal run(restarted(folder, "3", {"--checkpoint-on-signal", "SIGUSR1"}));
  hold_between_trainers(run);
  ::kill(run.pid(), SIGUSR1);
  REQUIRE(run.has_waiting(SIGUSR1));
  run.release_output();
  CHECK(run.exit_code() == 0);
  CHECK_THAT(run.printed(), !ContainsSubstring("(restart 2 of 3)"));
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
