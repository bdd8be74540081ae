// However a run of a parameter server is stopped, and whatever it cannot write, its weights are
// saved; and every one of its processes ends well.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/words.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// Two shards, two workers, a residual network and an evaluation of many seconds, if there is one.
words residual_run(const words& more) {
  return with({"--model", "resnet18", "--data", "synthetic:3x32x32:10:40000", "--batch-size", "16",
               "--threads-per-worker", "1", "--verbose"},
              more);
}

words endless_wide_run(const words& more) {
  return with({"--model", "wide", "--data", "clicks:4:1000:8000", "--batch-size", "64", "--steps",
               "100000", "--no-eval", "--verbose"},
              more);
}

std::function<void(pid_t, std::string_view)> at_first_step(std::function<void(pid_t)> act) {
  return at_line("step 1/", std::move(act));
}

std::size_t tensors_in(const fs::path& file) {
  const auto saved = engine::load_safetensors(file);
  return saved ? saved->size() : 0;
}

}  // namespace

TEST_CASE("SIGTERM in an evaluation has a parameter server's weights on disk within a second") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  const auto outcome =
      run_program(residual_run({"--steps", "1000", "--eval-every", "1", "--save", file}),
                  at_first_step([&](pid_t program) {
                    auto processes = children_of(program);
                    REQUIRE(processes.size() == 4);
                    std::ranges::sort(processes);
                    REQUIRE(tests::wait_for_work(processes.back(), std::chrono::milliseconds(300)));
                    CHECK_FALSE(fs::exists(file));
                    const tests::hold_up held;
                    kill(program, SIGTERM);
                    const auto took = tests::wait_for_file(file);
                    WARN("the weights were on disk after " << took.count() << " s");
                    CHECK(took < std::chrono::seconds(1) + held.over(tests::threads_of_a_loss));
                  }));
  CHECK(outcome.code == 143);
  CHECK(tensors_in(file) == 122);
  CHECK(outcome.err.find("evaluation after") == std::string::npos);
  check_children_ended_well(outcome, 4);
}

TEST_CASE("A parameter server saves before its last evaluation, which a signal abandons") {
  for (const std::string mode : {"synchronous", "asynchronous"}) {
    INFO(mode);
    const scratch_folder folder;
    const auto file = folder / "weights.safetensors";
    const auto outcome = run_program(residual_run({"--mode", mode, "--steps", "2", "--save", file}),
                                     at_first_step([&](pid_t program) {
                                       tests::wait_for_file(file);
                                       kill(program, SIGINT);
                                     }));
    CHECK(outcome.code == 130);
    CHECK(tensors_in(file) == 122);
    CHECK(outcome.err.find("evaluation after") == std::string::npos);
    check_children_ended_well(outcome, 4);
  }
}

TEST_CASE("Ctrl-C before a parameter server's first step leaves the file as it was") {
  const scratch_folder folder;
  const auto file = folder / "weights";
  std::ofstream(file) << "of a better run";
  const auto outcome =
      run_program(residual_run({"--steps", "1000", "--no-eval", "--save", file}),
                  at_line("has joined", [](pid_t program) { kill(program, SIGINT); }));
  CHECK(outcome.code == 130);
  CHECK(bytes_of(file) == "of a better run");
  CHECK_THAT(outcome.err, ContainsSubstring("nothing was saved"));
  check_children_ended_well(outcome, 4);
}

TEST_CASE("A signal to all of a parameter server's processes stops and saves") {
  const scratch_folder folder;
  const auto file = folder / "weights";
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    INFO(number);
    const auto outcome =
        run_program(endless_wide_run({"--save", file}), at_first_step([number](pid_t program) {
                      auto all = children_of(program);
                      CHECK(all.size() == 4);
                      all.push_back(program);
                      for (const auto each : all) kill(each, number);
                    }));
    CHECK(outcome.code == 128 + number);
    CHECK(tensors_in(file) == 8);
    CHECK(outcome.out.empty());
    check_children_ended_well(outcome, 4);
    fs::remove(file);
  }
}

TEST_CASE("A parameter server's weights go elsewhere, where they must, and its log may fail") {
  const scratch_folder folder;
  fs::create_directory(folder / "gone");
  std::ofstream(folder / "run.toml") << "[train]\nseed = 3\n";
  const auto outcome = run_program(endless_wide_run({"--config", folder / "run.toml", "--json",
                                                     "/dev/full", "--save", folder / "gone" / "w"}),
                                   at_first_step([&](pid_t program) {
                                     fs::remove(folder / "gone");
                                     kill(program, SIGTERM);
                                   }));
  CHECK(outcome.code == 3);
  CHECK(tensors_in(folder / "w") == 8);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: /dev/full: "));
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("; the weights are in " + (folder / "w").string()));
  check_children_ended_well(outcome, 4);
}
