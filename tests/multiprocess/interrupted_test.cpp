// However a run of a pipeline is stopped, and whatever it cannot write, its weights are saved; and
// every one of its processes ends well.

#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/small_disk.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/words.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

constexpr std::size_t tensors_of_resnet18 = 122;

using action = std::function<void(pid_t program)>;

/// A run of two stages that nobody waits for the end of.
words long_run(const words& more) {
  return with({"--model", "resnet18", "--data", "synthetic:3x32x32:10:64", "--batch-size", "8",
               "--steps", "100000", "--stages", "2", "--no-eval", "--verbose"},
              more);
}

/// Three steps.
words short_run(const words& more) {
  return with({"--model", "resnet18", "--data", "synthetic:3x32x32:10:64", "--batch-size", "8",
               "--steps", "3", "--stages", "2", "--no-eval", "--verbose"},
              more);
}

/// A run that evaluates for many seconds after its first step.
words evaluating_run(const words& more) {
  return with({"--model", "resnet18", "--data", "synthetic:3x32x32:10:40000", "--batch-size", "16",
               "--steps", "1000", "--stages", "2", "--eval-every", "1", "--verbose"},
              more);
}

std::function<void(pid_t, std::string_view)> at_first_step(action act) {
  return at_line("step 1/", std::move(act));
}

action send(int number) {
  return [number](pid_t program) { REQUIRE(kill(program, number) == 0); };
}

program_outcome run_in_shell(const std::string& line,
                             const std::function<void(pid_t, std::string_view)>& on_line = {}) {
  return run_other("/bin/sh", {"-c", line}, on_line);
}

bool holds_weights(const fs::path& file) {
  const auto saved = engine::load_safetensors(file);
  return saved && saved->size() == tensors_of_resnet18;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("Who interrupts a run after its last step is told that all of it is there") {
  const scratch_folder folder;
  const std::string file = folder / "weights.safetensors";
  const std::string kept = folder / "kept";
  const auto outcome =
      run_program({"--model", "resnet18", "--data", "synthetic:3x32x32:10:40000", "--batch-size",
                   "16", "--steps", "1", "--save", file, "--checkpoint-dir", kept},
                  at_first_step([&](pid_t program) {
                    tests::wait_for_file(file);
                    kill(program, SIGINT);
                  }));
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("interrupted after the last step, 1; the weights are complete in " +
                               file + "; the checkpoint is complete in " + kept +
                               "/step-000001; only the last evaluation is left out"));
}

TEST_CASE("SIGTERM in the middle of an evaluation has the weights on disk within a second") {
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const scratch_folder folder;
    const auto file = folder / "weights.safetensors";
    const auto outcome = run_program(
        evaluating_run({"--link", link, "--save", file}), at_first_step([&](pid_t program) {
          const auto stages = children_of(program);
          REQUIRE(stages.size() == 2);
          REQUIRE(tests::wait_for_work(stages.front(), std::chrono::milliseconds(300)));
          CHECK_FALSE(fs::exists(file));
          const tests::hold_up held;
          kill(program, SIGTERM);
          const auto took = tests::wait_for_file(file);
          WARN(link << ": the weights were on disk after " << took.count() << " s");
          CHECK(took < std::chrono::seconds(1) + held.over(tests::threads_of_a_loss));
        }));
    CHECK(outcome.code == 143);
    CHECK(holds_weights(file));
    CHECK(outcome.err.find("evaluation after") == std::string::npos);
    CHECK_THAT(outcome.err, ContainsSubstring("the weights after step 1 are in " + file.string()));
    check_children_ended_well(outcome, 2);
  }
}

TEST_CASE("A run saves before its last evaluation, which a signal abandons", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  auto arguments = evaluating_run({"--save", file});
  std::ranges::replace(arguments, "1000", "1");  // steps
  const auto outcome = run_program(arguments, at_first_step([&](pid_t program) {
                                     tests::wait_for_file(file);
                                     CHECK(kill(program, SIGINT) == 0);
                                   }));
  CHECK(outcome.code == 130);
  CHECK(holds_weights(file));
  CHECK(outcome.err.find("evaluation after") == std::string::npos);
  check_children_ended_well(outcome, 2);
}

TEST_CASE("Ctrl-C before the first step leaves the file as it was, and says so") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  std::ofstream(file) << "of a better run";
  const auto outcome = run_program(long_run({"--save", file}), at_line("has joined", send(SIGINT)));
  CHECK(outcome.code == 130);
  CHECK(bytes_of(file) == "of a better run");
  CHECK_THAT(outcome.err, ContainsSubstring("interrupted before a step was applied: nothing was "
                                            "saved, and " +
                                            file.string() + " was left as it was"));
  CHECK(names_in(file.parent_path()).size() == 1);
  check_children_ended_well(outcome, 2);
}

TEST_CASE("A second Ctrl-C while the weights are saved loses nothing") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  std::ofstream(file) << "of another run";
  auto arguments = long_run({"--save", file});
  std::ranges::replace(arguments, "resnet18", "resnet50");
  bool seen = false;
  const auto outcome = run_program(arguments, at_first_step([&](pid_t program) {
                                     kill(program, SIGINT);
                                     while (!seen && bytes_of(file) == "of another run")
                                       seen = names_in(file.parent_path()).size() > 1;
                                     kill(program, SIGINT);
                                   }));
  CHECK(seen);
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, ContainsSubstring("the weights are being saved; interrupt again"));
  CHECK(engine::load_safetensors(file));
  CHECK(names_in(file.parent_path()).size() == 1);
  check_children_ended_well(outcome, 2);
}

TEST_CASE("A signal to all processes at once, as a job's end sends it, stops and saves",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    INFO(number);
    const auto outcome =
        run_program(long_run({"--save", file}), at_first_step([number](pid_t program) {
                      auto all = children_of(program);
                      CHECK(all.size() == 2);
                      all.push_back(program);
                      for (const auto each : all) kill(each, number);
                    }));
    CHECK(outcome.code == 128 + number);
    CHECK(holds_weights(file));
    CHECK(outcome.out.empty());  // UCX would begin to write all it does
    CHECK(count(outcome.err, "UCX: ") == 0);
    check_children_ended_well(outcome, 2);
    fs::remove(file);
  }
}

TEST_CASE("A hangup leaves a run under nohup alone", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors", json = folder / "steps";
  const auto outcome =
      run_in_shell(shell_line("trap '' HUP;", long_run({"--save", file, "--json", json})),
                   at_first_step([&](pid_t program) {
                     auto all = children_of(program);
                     all.push_back(program);
                     for (const auto each : all) kill(each, SIGHUP);
                     CHECK(wait_for_lines(json, 10));  // more steps than are under way
                     kill(program, SIGINT);
                   }));
  CHECK(outcome.code == 130);
  CHECK(holds_weights(file));
  CHECK(outcome.out.empty());
  CHECK(count(outcome.err, "UCX: ") == 0);
  check_children_ended_well(outcome, 2);
}

TEST_CASE("What UCX has to say comes into our log", "[untimed]") {
  const auto outcome = run_in_shell(shell_line("export UCX_LOG_LEVEL=info;", short_run({})));
  CHECK(outcome.code == 0);
  CHECK(outcome.out.empty());
  CHECK(count(outcome.err, "info: UCX: ") > 0);
}

TEST_CASE("Only a file of its own is saved to", "[untimed]") {
  const scratch_folder folder;
  for (const auto& [arguments, text] : std::vector<std::pair<words, std::string>>{
           {{"--save", "/dev/null"}, "--save: /dev/null cannot be written: is a device"},
           {{"--save", folder / "x", "--json", folder / "./x"}, "each needs one of its own"},
           {{"--save", folder / std::string(256, 'n')}, "File name too long"}}) {
    const auto outcome = run_program(short_run(arguments));
    CHECK(outcome.code == 2);
    CHECK(count(outcome.err, "\n") == 1);
    CHECK_THAT(outcome.err, ContainsSubstring(text));
  }
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("A saved file keeps its link, its mode and, of --json, what it held", "[untimed]") {
  const scratch_folder folder;
  fs::create_directory(folder / "far");
  const auto target = folder / "far" / "weights";
  std::ofstream(target) << "old";
  fs::permissions(target, fs::perms(0604));
  fs::create_symlink(target, folder / "link");
  std::ofstream(folder / "steps") << "of another run\n";
  const auto outcome =
      run_program(short_run({"--save", folder / "link", "--json", folder / "steps"}));
  CHECK(outcome.code == 0);
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(holds_weights(target));
  CHECK(fs::status(target).permissions() == fs::perms(0604));
  CHECK(bytes_of(folder / "steps.old") == "of another run\n");
  CHECK(count(bytes_of(folder / "steps"), "\"step\":") == 3);
  CHECK_THAT(outcome.err, ContainsSubstring("steps.old"));
  check_children_ended_well(outcome, 2);
}

TEST_CASE("A log that takes no more is a warning, and the weights are saved", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  SECTION("a full device") {
    const auto outcome = run_program(short_run({"--json", "/dev/full", "--save", file}));
    CHECK(outcome.code == 0);
    CHECK(count(outcome.err, "warning: /dev/full: ") == 1);
    CHECK_THAT(outcome.err, ContainsSubstring("No space left on device; the run goes on"));
    check_children_ended_well(outcome, 2);
  }
  SECTION("a pipe that nobody reads any more") {
    const auto pipe = folder / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const auto outcome =
        run_program(long_run({"--json", pipe, "--save", file}), [&](pid_t p, std::string_view l) {
          if (l.starts_with("step 1/")) ::close(std::exchange(reader, -1));
          if (l.find("Broken pipe") != std::string_view::npos) kill(p, SIGTERM);
        });
    CHECK(outcome.code == 143);
    CHECK(count(outcome.err, "warning: " + pipe.string() + ": ") == 1);
    check_children_ended_well(outcome, 2);
  }
  CHECK(holds_weights(file));
}

TEST_CASE("A folder that is gone at the save: the weights go beside the settings, which is said",
          "[untimed]") {
  const scratch_folder folder;
  fs::create_directory(folder / "settings");
  fs::create_directory(folder / "gone");
  std::ofstream(folder / "settings" / "run.toml") << "[train]\nseed = 3\n";
  const auto outcome = run_program(long_run({"--config", folder / "settings" / "run.toml", "--save",
                                             folder / "gone" / "w.safetensors"}),
                                   at_first_step([&](pid_t program) {
                                     fs::remove(folder / "gone");
                                     kill(program, SIGTERM);
                                   }));
  CHECK(outcome.code == 3);
  const auto file = folder / "settings" / "w.safetensors";
  CHECK(holds_weights(file));
  CHECK_THAT(outcome.last_line(), ContainsSubstring((folder / "gone" / "w.safetensors").string()) &&
                                      ContainsSubstring("No such file or directory") &&
                                      ContainsSubstring("; the weights are in " + file.string()));
  check_children_ended_well(outcome, 2);
}

TEST_CASE("The optimizer's state goes where the weights went, also of an interrupted run",
          "[untimed]") {
  for (const bool is_gone : {false, true}) {
    INFO(is_gone);
    const scratch_folder folder;
    fs::create_directory(folder / "settings");
    fs::create_directory(folder / "first");
    std::ofstream(folder / "settings" / "run.toml") << "[optimizer]\nmomentum = 0.9\n";
    const auto outcome =
        run_program(long_run({"--config", folder / "settings" / "run.toml", "--save",
                              folder / "first" / "w.safetensors", "--save-state"}),
                    at_first_step([&](pid_t program) {
                      if (is_gone) fs::remove(folder / "first");
                      kill(program, SIGTERM);
                    }));
    CHECK(outcome.code == (is_gone ? 3 : 143));
    const fs::path where = folder / (is_gone ? "settings" : "first");
    CHECK(holds_weights(where / "w.safetensors"));
    CHECK(engine::load_safetensors(where / "w.state.safetensors"));
    CHECK_THAT(outcome.err, ContainsSubstring("the optimizer's state is in " +
                                              (where / "w.state.safetensors").string()));
    check_children_ended_well(outcome, 2);
  }
}

TEST_CASE("A full disk at the save: the weights go elsewhere, and nothing of them stays there",
          "[untimed]") {
  const scratch_folder folder;
  const small_disk small(folder / "small");
  if (!small.made()) SKIP("no small file system can be mounted: " << small.reason());
  std::ofstream(folder / "run.toml") << "[train]\nseed = 3\n";
  std::ofstream(folder / "small" / "weights") << "old";
  const auto outcome = run_program(
      short_run({"--config", folder / "run.toml", "--save", folder / "small" / "weights"}));
  CHECK(outcome.code == 3);
  CHECK(holds_weights(folder / "weights"));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("No space left on device; the weights are in " +
                                                    (folder / "weights").string()));
  CHECK(names_in(folder / "small") == std::set<std::string>{"weights"});
  CHECK(bytes_of(folder / "small" / "weights") == "old");
  check_children_ended_well(outcome, 2);
}

TEST_CASE("Weights that can be saved nowhere end the run with a code of their own", "[untimed]") {
  const scratch_folder folder;
  fs::create_directory(folder / "here");
  const auto outcome =
      run_in_shell(shell_line("cd '" + (folder / "here").string() + "'; export TMPDIR=/nowhere;",
                              long_run({"--save", "w"})),
                   at_first_step([&](pid_t program) {
                     fs::remove(folder / "here");
                     kill(program, SIGTERM);
                   }));
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("the weights are saved nowhere"));
  check_children_ended_well(outcome, 2);
}

TEST_CASE("A run that has no descriptor left saves all the same", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  const auto outcome = run_program(
      long_run({"--save", file}), at_first_step([](pid_t program) {
        const fs::path open_files = "/proc/" + std::to_string(program) + "/fd";
        rlim_t lowest_free = 0;
        while (fs::is_symlink(fs::symlink_status(open_files / std::to_string(lowest_free))))
          ++lowest_free;
        REQUIRE(lowest_free > 3);
        const rlimit none_left{lowest_free, lowest_free};
        REQUIRE(::prlimit(program, RLIMIT_NOFILE, &none_left, nullptr) == 0);
        kill(program, SIGTERM);
      }));
  CHECK(outcome.code == 143);
  CHECK(holds_weights(file));
  check_children_ended_well(outcome, 2);
}

TEST_CASE("A limit on file sizes is an error with a line, and leaves nothing in shared memory",
          "[untimed]") {
  const scratch_folder folder;
  const tests::scratch_memory memory;
  const auto run = [&](rlim_t most_bytes) {
    // Units of 512 bytes, in the shell of every POSIX system.
    return run_in_shell(shell_line("ulimit -f " + std::to_string(most_bytes / 512) + ";",
                                   short_run({"--save", folder / "weights"})));
  };
  SECTION("that the weights exceed") {
    const auto outcome = run(16 << 20);
    CHECK(outcome.code == 4);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("File too large"));
    check_children_ended_well(outcome, 2);
  }
  SECTION("that anything exceeds") {
    const auto outcome = run(512);
    CHECK(outcome.signal == 0);
    CHECK(outcome.code > 0);
    CHECK(outcome.code < 128);
    CHECK(count(outcome.err, "SIG") == 0);
    CHECK_FALSE(outcome.last_line().empty());
  }
  CHECK(memory.left().empty());
  CHECK(names_in(folder / "").empty());
}

TEST_CASE("A run without its standard streams, or with a closed pipe for them, saves",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  SECTION("closed") {
    const auto outcome = run_in_shell(
        shell_line("", short_run({"--save", file, "--json", folder / "steps"}), "<&- >&- 2>&-"));
    CHECK(outcome.code == 0);
    CHECK(count(bytes_of(folder / "steps"), "\n") == 3);
  }
  SECTION("one of them") {
    CHECK(run_in_shell(shell_line("", short_run({"--save", file}), "2>&-")).code == 0);
  }
  SECTION("a pipe that nobody reads") {
    const auto outcome = run_in_shell("{ ( " + shell_line("", short_run({"--save", file}), "2>&1") +
                                      " ); echo ended $? >&2; } | true");
    CHECK_THAT(outcome.err, ContainsSubstring("ended 0"));
  }
  CHECK(holds_weights(file));
}
