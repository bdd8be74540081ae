// A trainer that is lost in a run that goes on after losses: another one continues behind its last
// step, from what a process that outlives it keeps.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/disturbed_run.hpp"
#include "tests/multiprocess/recovery/watched_run.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

words watched_run(const scratch_folder& folder) {
  return watched(folder, two_stages({}));
}

/// Stops the trainer until its stages have left it.
pid_t stop_trainer(pid_t watcher) {
  const auto trainer = trainer_below(watcher);
  const auto stages = children_of(trainer);
  ::kill(trainer, SIGSTOP);
  for (const auto stage : stages) CHECK(wait_until_gone(stage));
  return trainer;
}

/// The soft limit on a process's open files.
unsigned long files_allowed(pid_t process) {
  std::ifstream limits("/proc/" + std::to_string(process) + "/limits");
  for (std::string line; std::getline(limits, line);)
    if (line.starts_with("Max open files"))
      return std::stoul(line.substr(line.find_first_of("0123456789")));
  FAIL("the limits of process " << process << " cannot be read");
  return 0;
}

/// The steps that the trainers which were started again went on after, from versions.
std::vector<int> gone_on_after(const std::string& log) {
  std::vector<int> steps;
  const std::regex told("goes on after step ([0-9]+), from versions");
  for (std::sregex_iterator each(log.begin(), log.end(), told), end; each != end; ++each)
    steps.push_back(std::stoi(each->str(1)));
  return steps;
}

/// What the table of a run of ResNet-18 says of the process that outlives the trainer.
double predicted_mebi_of_keeper(const words& link) {
  const scratch_folder folder;
  const auto outcome = run_program(with({"--check"}, watched(folder, large_two_stages(link))));
  REQUIRE(outcome.code == 0);
  const auto begin = outcome.out.find("\nkeeper ");
  REQUIRE(begin != std::string::npos);
  const auto end = outcome.out.find(" MiB", begin);
  REQUIRE(end != std::string::npos);
  return std::stod(outcome.out.substr(outcome.out.rfind(' ', end - 1), end));
}

}  // namespace

TEST_CASE("A run whose trainer is lost goes on after its last step, to the same bits") {
  const auto run = GENERATE(
      recovery::training({"--stages", "2"}), recovery::training({"--stages", "2", "--link", "tcp"}),
      two_stages({"--loss-scale", "dynamic", "--loss-scale-interval", "3"}),
      recovery::training({"--replicas", "2", "--stages", "1", "--zero", "1"}),
      recovery::training({"--replicas", "2", "--stages", "1", "--zero", "1", "--link", "tcp"}));
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, recovery::without_ways(run));
  const auto outcome = run_program(
      watched(folder, run), one_after_other(at_step(3, kill_trainer), at_step(11, kill_trainer)));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("(restart 1 of 2)"));
  CHECK_THAT(outcome.err, ContainsSubstring("(restart 2 of 2)"));
  // An update is every second step; where a trainer is killed late it has made another one.
  const auto after = gone_on_after(outcome.err);
  REQUIRE(after.size() == 2);
  CHECK(after.front() >= 2);
  CHECK(after.front() % 2 == 0);
  CHECK(after.back() >= 10);
  CHECK(after.back() % 2 == 0);
  CHECK_THAT(outcome.err, !ContainsSubstring("goes on from the checkpoint") &&
                              !ContainsSubstring("no process keeps versions"));
  CHECK(times_told(outcome.err, 1) == 1);
  CHECK(times_told(outcome.err, 9) == 1);
  if (std::ranges::find(run, "--link") != run.end())
    CHECK_THAT(outcome.err, ContainsSubstring(" bytes of gradients and buffers instead of ") &&
                                !ContainsSubstring("its versions travel whole"));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("A trainer that was stopped for so long that all left it gives way to another one") {
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  pid_t trainer = 0;
  const auto hold = [&](pid_t watcher) { trainer = stop_trainer(watcher); };
  const auto keeper_left =
      at_line("the keeper of versions: ", [&](pid_t) { ::kill(trainer, SIGCONT); });
  const auto outcome = run_program(watched(folder, two_stages({}), "2", "12"),
                                   one_after_other(at_step(5, hold), keeper_left));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("gives way to another one") &&
                              ContainsSubstring("exited with code 1: it is started again") &&
                              ContainsSubstring(from_memory) &&
                              !ContainsSubstring("goes back to where it began"));
  CHECK(times_told(outcome.err, 1) == 1);
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("A trainer that is left after the process that outlives it was lost goes on itself") {
  const scratch_folder folder;
  const auto run = two_stages({}, 24);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto kill =
      at_line("step-000004 in ", [](pid_t watcher) { ::kill(keeper_below(watcher), SIGKILL); });
  const auto hold =
      at_line("step-000016 in ", [](pid_t watcher) { ::kill(stop_trainer(watcher), SIGCONT); });
  const auto outcome = run_program(watched(folder, run), one_after_other(kill, hold));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("no process keeps versions for another trainer") &&
                              ContainsSubstring("2 stages are replaced") &&
                              !ContainsSubstring("gives way to another one") &&
                              !ContainsSubstring("it is started again"));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("A run whose trainer is lost after its last step is saved by the next one, and ends") {
  CAPTURE(GENERATE(1, 2, 3));  // the last checkpoint may be there before the trainer is lost
  const scratch_folder folder;
  const auto run = large_two_stages({});  // which takes some time to save, and a kill to come
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto outcome = run_program(watched(folder, run, "2", "12"), at_step(12, kill_trainer));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("(restart 1 of ") && !ContainsSubstring("(restart 2 of "));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("A run whose trainer is lost within a long update goes on behind the update before it") {
  const scratch_folder folder;
  const auto run = two_stages({}, 12, 6);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto outcome = run_program(watched(folder, run, "1", "12"), at_step(9, kill_trainer));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("goes on after step 6, from versions"));
  CHECK(times_told(outcome.err, 6) == 1);
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("Stages that are lost before they have versions take none of a model cut otherwise") {
  const scratch_folder folder;
  const auto file = folder / "the-first-layer-is-slow";
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  auto run = with(two_stages({}), {"--partition", "auto"});
  std::ranges::replace(run, std::string("small"), std::string("uneven"));
  REQUIRE(::setenv("TROUPE_UNEVEN", file.c_str(), 1) == 0);
  const auto cut_otherwise = at_line("step-000006 in ", [&](pid_t watcher) {
    write_text(file, "");
    kill_trainer(watcher);
  });
  const auto lose_stages = at_line("goes on from the checkpoint of step ", kill_stages);
  const auto outcome =
      run_program(watched(folder, run, "1", "2"), one_after_other(cut_otherwise, lose_stages));
  ::unsetenv("TROUPE_UNEVEN");
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("no version is left of a stage that was lost") &&
                              !ContainsSubstring(from_memory));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE("What outlives a trainer may open files for each process of the run") {
  const scratch_folder folder;
  unsigned long allowed = 0;
  const auto line = shell_line("ulimit -S -n 52;", watched_run(folder));
  const auto outcome =
      run_other("/bin/sh", {"-c", line},
                at_step(2, [&](pid_t watcher) { allowed = files_allowed(keeper_below(watcher)); }));
  REQUIRE(outcome.code == 0);
  CHECK(allowed > 52);
  CHECK_THAT(outcome.err, !ContainsSubstring("no process keeps versions"));
}

// Over tcp these are neighbours of which each keeps the other one's versions.
TEST_CASE("A trainer that took the place of a lost one survives the loss of stages") {
  const words link = GENERATE(words{}, words{"--link", "tcp"});
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto outcome =
      run_program(watched(folder, two_stages(link)),
                  one_after_other(at_step(3, kill_trainer), at_step(7, kill_stages)));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring(from_memory));
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0 and stage-1 are replayed from step"));
  check_same_weights(calm.weights(), folder / "weights");
}

TEST_CASE(
    "A run that loses the process that outlives its trainer goes on, and from a checkpoint "
    "after the trainer's loss") {
  const words link = GENERATE(words{}, words{"--link", "tcp"});
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  const scratch_folder folder;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  pid_t keeper = 0;
  const auto outcome = run_program(watched(folder, two_stages(link)),
                                   one_after_other(at_step(2,
                                                           [&](pid_t watcher) {
                                                             keeper = keeper_below(watcher);
                                                             ::kill(keeper, signal);
                                                           }),
                                                   at_line("step-000008 in ", [&](pid_t watcher) {
                                                     kill_trainer(watcher);
                                                     if (signal == SIGSTOP) ::kill(keeper, SIGCONT);
                                                   })));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("no process keeps versions for another trainer"));
  CHECK_THAT(outcome.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK_THAT(outcome.err, !ContainsSubstring(from_memory));
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(wait_until_gone(keeper));
}

TEST_CASE("The process that outlives trainers ends with the one that watches over them") {
  const int signal = GENERATE(SIGKILL, SIGTERM, 0);
  const scratch_folder folder;
  pid_t keeper = 0;
  const auto outcome = run_program(watched_run(folder), at_step(3, [&](pid_t watcher) {
                                     keeper = keeper_below(watcher);
                                     if (signal == 0) return;
                                     ::kill(keeper, SIGINT);  // as a terminal sends it to all
                                     ::kill(watcher, signal);
                                   }));
  if (signal == SIGKILL)
    CHECK(outcome.signal == SIGKILL);
  else
    CHECK(outcome.code == (signal == 0 ? 0 : 128 + SIGTERM));
  CHECK(wait_until_gone(keeper));
}

TEST_CASE("Only a run that goes on after losses has a process that outlives its trainer") {
  const scratch_folder folder;
  std::size_t children = 0;
  auto run = watched_run(folder);
  *std::next(std::ranges::find(run, "--on-fault")) = "stop";
  const auto outcome =
      run_program(run, at_step(3, [&](pid_t watcher) { children = children_of(watcher).size(); }));
  REQUIRE(outcome.code == 0);
  CHECK(children == 1);
}

TEST_CASE("A check counts what outlives the trainer where stages do not lend it their versions") {
  CHECK(predicted_mebi_of_keeper({}) == 0);
  // Three versions of 128 MiB, 43 MiB of gradients, and what it computes of these: one stage's.
  const auto sent = predicted_mebi_of_keeper({"--link", "tcp"});
  CHECK(sent > 3 * 127 + 40 + 64);
  CHECK(sent < 4 * 130 + 50);
}

TEST_CASE("Whatever of a run is killed at whatever moment, it ends with the bits of a calm one") {
  const auto seed = GENERATE(1U, 2U, 3U);
  const scratch_folder folder;
  const words link = seed == 3 ? words{"--link", "tcp"} : words{};
  const auto run = recovery::training(with({"--stages", "2"}, link), 24);
  const calm_run calm(TROUPE_PROGRAM, recovery::without_ways(run));
  std::minstd_rand random(seed);
  std::vector<pid_t> seen;
  int kills = 0;
  const auto strike = [&](pid_t watcher, std::string_view) {
    for (const auto child : children_of(watcher)) seen.push_back(child);
    if (kills == 12 || random() % 2 != 0) return;  // a fast machine ends the run within 2 s
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 120));
    auto targets = children_of(watcher);  // the trainer and the keeper
    for (const auto child : children_of(watcher))
      for (const auto stage : children_of(child)) targets.push_back(stage);
    if (targets.empty()) return;
    ++kills;
    ::kill(targets[random() % targets.size()], SIGKILL);
  };
  const auto outcome = run_program(watched(folder, run, "30"), strike);
  INFO("seed " << seed << ", " << kills << " kills");
  REQUIRE(outcome.code == 0);
  CHECK(kills >= 5);  // the last may come too late
  check_same_weights(calm.weights(), folder / "weights");
  for (const auto each : seen) CHECK(wait_until_gone(each));
}
