// A run that loses stages goes on with other processes, to the bits of a run that nothing happened
// to.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::program_outcome;
using tests::run_other;
using tests::run_program;
using tests::scratch_folder;
using words = std::vector<std::string>;

words with(words run, const words& more) {
  run.insert(run.end(), more.begin(), more.end());
  return run;
}

/// An optimizer with state, a rate that follows a curve, norms that couple the stages, and an update
/// every second step.
words training(const words& more) {
  return with({"--model",    "resnet18",  "--data",          "synthetic:3x32x32:10:48",
               "--batch-size", "8",       "--optimizer",     "adam",
               "--lr",       "0.01",      "--lr-schedule",   "cosine",
               "--micro-batches", "2",    "--clip-norm",     "1",
               "--steps",    "12",        "--accumulate",    "2",
               "--no-eval",  "--save-state"},
              more);
}

/// The process of a run's stage, whichever it is now; 0: there is none.
pid_t process_of(pid_t program, const std::string& stage) {
  pid_t found = 0;
  for (const auto pid : tests::children_of(program)) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
    const std::string line(std::istreambuf_iterator<char>(in), {});
    const auto at = line.find(stage);
    if (at == std::string::npos) continue;
    const char next = line[at + stage.size()];
    if (next == '\0' || next == '.') found = pid;
  }
  return found;
}

struct fault {
  std::string stage;
  int signal = SIGKILL;
};

/// Sends a signal to a stage's process when a step was told, once each.
std::function<void(pid_t, std::string_view)> at_steps(std::map<int, fault> faults) {
  return [faults = std::move(faults)](pid_t program, std::string_view line) mutable {
    if (line.find("step ") != 0) return;
    const auto found = faults.find(std::atoi(line.substr(5).data()));
    if (found == faults.end()) return;
    const auto pid = process_of(program, found->second.stage);
    REQUIRE(pid != 0);
    ::kill(pid, found->second.signal);
    faults.erase(found);
  };
}

void check_same(const fs::path& one, const fs::path& other) {
  const auto first = engine::load_safetensors(one);
  const auto second = engine::load_safetensors(other);
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE(first->size() == second->size());
  for (std::size_t i = 0; i < first->size(); ++i) {
    INFO(first->at(i).name);
    REQUIRE(first->at(i).name == second->at(i).name);
    CHECK(first->at(i).tensor.equal(second->at(i).tensor));
  }
}

int count_of(const std::string& text, std::string_view what) {
  int count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

/// The numbers of the steps that were told, in their order.
std::vector<int> steps_told(const program_outcome& outcome) {
  std::vector<int> steps;
  for (std::size_t at = 0; at != std::string::npos; at = outcome.err.find('\n', at)) {
    if (at > 0) ++at;
    if (outcome.err.compare(at, 5, "step ") == 0) steps.push_back(std::atoi(&outcome.err[at + 5]));
  }
  return steps;
}

const words recovering{"--on-fault", "recover"};

/// A run with faults has the weights and state of the same run without: `run` is its command line.
program_outcome check_run(const words& run, const std::map<int, fault>& faults) {
  const scratch_folder folder;
  const tests::scratch_memory memory;
  const auto calm = run_program(with(run, {"--save", folder / "calm"}));
  INFO(calm.err);
  REQUIRE(calm.code == 0);
  const auto outcome =
      run_program(with(with(run, recovering), {"--save", folder / "stormy"}), at_steps(faults));
  UNSCOPED_INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(count_of(outcome.err, "the run goes on behind step") == static_cast<int>(faults.size()));
  CHECK_THAT(outcome.err, !ContainsSubstring("was computed again, and its loss is"));
  std::vector<int> all;
  for (int step = 1; step <= 12; ++step) all.push_back(step);
  CHECK(steps_told(outcome) == all);
  check_same(folder / "calm", folder / "stormy");
  check_same((folder / "calm") + ".state.safetensors", (folder / "stormy") + ".state.safetensors");
  CHECK(memory.left().empty());
  return outcome;
}

}  // namespace

TEST_CASE("A run whose stage is killed goes on to the bits of one that nothing happened to") {
  for (const std::string link : {"shm", "tcp"})
    for (const std::string stage : {"stage-0", "stage-1"}) {
      INFO(link << " " << stage);
      const auto outcome =
          check_run(training({"--stages", "2", "--link", link}), {{5, {.stage = stage}}});
      CHECK_THAT(outcome.err, ContainsSubstring(stage + " was killed by signal 9 (SIGKILL); it is "
                                                        "replaced"));
    }
}

TEST_CASE("A run goes on however often it loses a stage, if it comes forward in between") {
  check_run(training({"--stages", "3", "--schedule", "zb-h1"}), {{2, {.stage = "stage-2"}},
                                                                  {4, {.stage = "stage-0"}},
                                                                  {6, {.stage = "stage-1"}},
                                                                  {9, {.stage = "stage-1"}},
                                                                  {11, {.stage = "stage-2"}}});
}

TEST_CASE("A stage that is stopped is replaced like one that is dead") {
  const auto outcome =
      check_run(training({"--stages", "2"}), {{4, {.stage = "stage-1", .signal = SIGSTOP}}});
  CHECK_THAT(outcome.err, ContainsSubstring("is replaced"));
}

TEST_CASE("The only stage of a run is replaced from what the trainer keeps") {
  check_run(training({"--stages", "1"}), {{3, {.stage = "stage-0"}}, {8, {.stage = "stage-0"}}});
}

TEST_CASE("Replicas and a dynamic loss scale survive the loss of a stage") {
  check_run(training({"--stages", "2", "--replicas", "2", "--loss-scale", "dynamic",
                      "--loss-scale-interval", "3"}),
            {{3, {.stage = "stage-0 of replica 2"}}, {7, {.stage = "stage-1"}}});
}

TEST_CASE("An evaluation that is interrupted by a loss is made once") {
  const scratch_folder folder;
  const words run{"--model",  "resnet18", "--data",       "synthetic:3x32x32:10:48",
                  "--batch-size", "8",    "--steps",      "6",
                  "--stages", "2",        "--eval-every", "3"};
  const auto calm = run_program(with(run, {"--save", folder / "calm"}));
  REQUIRE(calm.code == 0);
  bool done = false;
  const auto at_third = [&](pid_t program, std::string_view line) {
    if (done || line.find("step 3 ") != 0) return;
    done = true;
    ::kill(process_of(program, "stage-1"), SIGKILL);  // step 3 is over: the evaluation begins
  };
  const auto outcome =
      run_program(with(with(run, recovering), {"--save", folder / "stormy"}), at_third);
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(count_of(outcome.err, "accuracy") == count_of(calm.err, "accuracy"));
  check_same(folder / "calm", folder / "stormy");
}

TEST_CASE("A stage that is lost with the node that kept it ends the run, which says so") {
  bool done = false;
  const auto both = [&](pid_t program, std::string_view line) {
    if (done || line.find("step 3 ") != 0) return;
    done = true;
    for (const auto pid : tests::children_of(program)) ::kill(pid, SIGKILL);
  };
  const auto outcome = run_program(with(training({"--stages", "2"}), recovering), both);
  INFO(outcome.err);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("was killed by signal 9 (SIGKILL)") &&
                                      ContainsSubstring("no version is left of"));
}

TEST_CASE("A stage that is lost again and again without progress ends the run") {
  const auto always = [](pid_t program, std::string_view line) {
    if (line.find("step 1 ") == 0 || line.find("the run goes on behind") != std::string_view::npos)
      ::kill(process_of(program, "stage-1"), SIGKILL);
  };
  const auto outcome = run_program(with(training({"--stages", "2"}), recovering), always);
  INFO(outcome.err);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("was killed by signal 9 (SIGKILL)") &&
                                      ContainsSubstring("times behind step"));
}

TEST_CASE("Dropout and tied weights survive the loss of a stage") {
  const scratch_folder folder;
  const auto text = folder / "text.txt";
  std::ofstream out(text);
  for (int i = 0; i < 400; ++i) out << "All the world is a stage, number " << i;
  out.close();
  const words run{"--data",    "text:" + std::string(text),
                  "--context", "16", "--batch-size", "8",   "--steps",    "8",
                  "--stages",  "2",  "--dropout",    "0.2", "--width",    "32",
                  "--heads",   "2",  "--layers",     "4",   "--no-eval",  "--save-state"};
  const auto calm = run_other(TROUPE_TRANSFORMER, with(run, {"--save", folder / "calm"}));
  INFO(calm.err);
  REQUIRE(calm.code == 0);
  const auto outcome =
      run_other(TROUPE_TRANSFORMER, with(with(run, recovering), {"--save", folder / "stormy"}),
                at_steps({{3, {.stage = "stage-1"}}, {6, {.stage = "stage-0"}}}));
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(count_of(outcome.err, "the run goes on behind step") == 2);
  check_same(folder / "calm", folder / "stormy");
}
