// A run whose processes are killed or interrupted ends by itself, says why, and leaves nothing.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/grey_image.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// A run of the small network (small_pipeline.cpp) without an end in sight. `more`: other flags.
program_outcome run_over(const std::string& link,
                         const std::function<void(pid_t, std::string_view)>& on_line,
                         const words& more = {}) {
  const auto run = split_words(
      "--model small --data synthetic:3x32x32:10:64 --batch-size 16 --steps 1000000 --stages 2 "
      "--no-eval --link " +
      link);
  return run_other(TROUPE_SMALL, with(run, more), on_line);
}

/// Whether a process of ours, which may be gone, has a name where it is met.
bool has_socket(pid_t process) {
  const char* const folder = std::getenv("XDG_RUNTIME_DIR");
  const auto sockets = std::filesystem::path(folder != nullptr ? folder : "/tmp") /
                       ("troupe-" + std::to_string(getuid()));
  for (const auto& each : std::filesystem::directory_iterator(sockets))
    if (each.path().filename().string().starts_with(std::to_string(process) + "-")) return true;
  return false;
}

bool is_step(std::string_view line) {
  return line.find("step ") == 0;
}

/// Does something with the program and its stages when a first step is done.
std::function<void(pid_t, std::string_view)> at_first_step(std::vector<pid_t>& stages,
                                                           std::function<void(pid_t program)> act) {
  return at_line("step 1/", [&stages, act = std::move(act)](pid_t program) {
    stages = children_of(program);
    REQUIRE(stages.size() == 2);
    act(program);
  });
}

}  // namespace

TEST_CASE("A killed stage process ends the run with its name and the signal") {
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const tests::scratch_memory memory;
    std::vector<pid_t> stages;
    const auto outcome =
        run_over(link, at_first_step(stages, [&](pid_t) { kill(stages[1], SIGKILL); }));
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("was killed by signal 9 (SIGKILL)"));
    for (const auto stage : stages) {
      CHECK(wait_until_gone(stage));
      CHECK_FALSE(has_socket(stage));
    }
    CHECK(memory.left().size() <= 1);
  }
}

TEST_CASE("A stopped stage process ends the run with its name within seconds") {
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const tests::scratch_memory memory;
    std::vector<pid_t> stages;
    std::chrono::steady_clock::time_point stopped;
    std::optional<hold_up> held;
    const auto outcome = run_over(link, at_first_step(stages, [&](pid_t) {
                                    held.emplace();
                                    stopped = std::chrono::steady_clock::now();
                                    kill(stages[1], SIGSTOP);
                                  }));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - stopped;
    WARN(link << ": the run ended " << took.count() << " s after: " << outcome.last_line());
    CHECK(outcome.code == 1);
    REQUIRE(held);
    CHECK(took < std::chrono::seconds(5) + held->over(threads_of_a_loss));
    CHECK_THAT(outcome.last_line(),
               ContainsSubstring("stage-") && ContainsSubstring(" is gone: ") &&
                   ContainsSubstring("its process " + std::to_string(stages[1]) + " is stopped"));
    for (const auto stage : stages) CHECK(wait_until_gone(stage));
    CHECK(memory.left().empty());
  }
}

TEST_CASE("Stage processes leave a stopped trainer, which learns that it was left") {
  const tests::scratch_memory memory;
  std::vector<pid_t> stages;
  const auto outcome = run_over("shm", at_first_step(stages, [&](pid_t program) {
                                  kill(program, SIGSTOP);
                                  for (const auto stage : stages) CHECK(wait_until_gone(stage));
                                  kill(program, SIGCONT);
                                }));
  WARN(outcome.last_line());
  REQUIRE(stages.size() == 2);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("node 'trainer' is gone: its process"));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("this process itself had stood still for"));
  CHECK(memory.left().empty());
}

TEST_CASE("A stage that is stopped once its work is done is waited for, and that is said") {
  const tests::scratch_memory memory;
  std::chrono::steady_clock::time_point continued;
  std::optional<hold_up> held;
  const auto outcome = tests::run_other(
      "/bin/sh",
      {"-c", "TROUPE_STOPS_AT_END=1 exec " TROUPE_PERTURBED
             " --model resnet18 --data synthetic:3x32x32:10:8 --batch-size 8 --steps 1 --no-eval "
             "--verbose"},
      tests::at_line("stage-0 has not ended with the run: it may be stopped (SIGSTOP)",
                     [&](pid_t program) {
                       held.emplace();
                       continued = std::chrono::steady_clock::now();
                       for (const auto stage : children_of(program)) {
                         CHECK(tests::wait_for_state(stage, 'T'));
                         kill(stage, SIGCONT);
                       }
                     }));
  const auto took = std::chrono::steady_clock::now() - continued;
  REQUIRE(held);
  CHECK(took <
        std::chrono::seconds(3) + held->over(threads_of_a_loss));  // not until they are killed
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("it is waited for some seconds more"));
  check_children_ended_well(outcome, 2);
  CHECK(memory.left().empty());
}

TEST_CASE("Ctrl-Z stops the whole run, and it goes on when it is continued", "[untimed]") {
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const scratch_folder folder;
    const auto json = folder / "steps";
    std::vector<pid_t> stages;
    const auto outcome =
        run_over(link,
                 at_first_step(stages,
                               [&](pid_t program) {
                                 kill(program, SIGTSTP);
                                 wait_until_stopped(program);
                                 for (const auto stage : stages)
                                   CHECK(tests::wait_for_state(stage, 'T'));
                                 // Far longer than a silent peer is given.
                                 std::this_thread::sleep_for(std::chrono::seconds(2));
                                 kill(program, SIGCONT);
                                 CHECK(wait_for_lines(json, 3));
                                 kill(program, SIGINT);
                               }),
                 {"--json", json});
    CHECK(outcome.code == 130);
    for (const auto stage : stages) CHECK(wait_until_gone(stage));
  }
}

TEST_CASE("Stage processes die with a killed trainer") {
  std::vector<pid_t> stages;
  const auto outcome =
      run_over("shm", at_first_step(stages, [](pid_t program) { kill(program, SIGKILL); }));
  CHECK(outcome.signal == SIGKILL);
  REQUIRE(stages.size() == 2);
  for (const auto stage : stages) CHECK(wait_until_gone(stage));
}

TEST_CASE("Ctrl-C stops after the steps under way and saves the weights") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  std::vector<pid_t> stages;
  const auto outcome =
      run_over("auto", at_first_step(stages, [](pid_t program) { kill(program, SIGINT); }),
               {"--save", file});
  CHECK(outcome.code == 130);
  CHECK(engine::load_safetensors(file).value().size() == 62);
  for (const auto stage : stages) CHECK(wait_until_gone(stage));
}

TEST_CASE("A second Ctrl-C ends the run at once") {
  const std::vector<std::string> slow_steps{
      "--model",      "resnet18", "--data",   "synthetic:3x64x64:10:64",
      "--batch-size", "16",       "--steps",  "100000",
      "--stages",     "2",        "--no-eval"};
  std::vector<pid_t> stages;
  const auto outcome = run_program(slow_steps, [&](pid_t program, std::string_view line) {
    if (stages.empty() && is_step(line)) {
      stages = children_of(program);
      kill(program, SIGINT);
    } else if (line.find("interrupt again") != std::string_view::npos) {
      kill(program, SIGINT);
    }
  });
  CHECK(outcome.code == 130);
  for (const auto stage : stages) CHECK(wait_until_gone(stage));
}

TEST_CASE("An image that no descriptor is left for ends a run, and is not left out", "[untimed]") {
  const scratch_folder folder;
  tests::write_grey_images(folder / "images", 32);
  const auto run = split_words(
      "--model small --image-size 32 --batch-size 16 --steps 1000000 --stages 2 --no-eval");
  const auto take_descriptors = [](pid_t program, std::string_view line) {
    // In the first steps processes may still open something for each other.
    if (!is_step(line) || std::stoi(std::string(line.substr(5))) < 10) return;
    const std::filesystem::path open_files = "/proc/" + std::to_string(program) + "/fd";
    rlim_t lowest_free = 0;  // or higher by the images that are being read
    while (std::filesystem::is_symlink(
        std::filesystem::symlink_status(open_files / std::to_string(lowest_free))))
      ++lowest_free;
    const rlimit none_left{lowest_free, lowest_free};
    if (lowest_free > 3) ::prlimit(program, RLIMIT_NOFILE, &none_left, nullptr);
  };
  const auto outcome =
      run_other(TROUPE_SMALL, with(run, {"--data", "folder:" + (folder / "images").string()}),
                take_descriptors);
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring(".png cannot be used: Too many open files; raise the limit on open "
                               "files (ulimit -n)"));
  CHECK_THAT(outcome.err, !ContainsSubstring("; it is left out"));
}
