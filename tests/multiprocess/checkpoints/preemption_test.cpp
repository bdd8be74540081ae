// A run that a scheduler preempts and starts again, and a disk that takes no checkpoint.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "messages/descriptor.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"
#include "tests/small_disk.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// The names of the steps but the last one, which every run writes at its end.
std::set<std::string> early(const fs::path& checkpoints, const std::string& last) {
  auto names = names_in(checkpoints);
  CHECK(names.erase(last) == 1);
  return names;
}

}  // namespace

TEST_CASE("A signal has a checkpoint written at the next whole update, and the run goes on") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto asked =
      run_program(two_stages({"--checkpoint-dir", checkpoints, "--checkpoint-on-signal", "SIGUSR1",
                              "--save", folder / "asked"}),
                  at_line("step 3/", [](pid_t program) {
                    for (const auto stage : children_of(program))
                      REQUIRE(::kill(stage, SIGUSR1) == 0);
                    REQUIRE(::kill(program, SIGUSR1) == 0);
                  }));
  REQUIRE(asked.code == 0);
  CHECK_THAT(asked.err, ContainsSubstring("a signal asks for a checkpoint"));
  check_same_weights(calm.weights(), folder / "asked");
  const auto written = early(checkpoints, "step-000012");
  REQUIRE(written.size() == 1);
  const auto step = std::stoi(written.begin()->substr(5));
  CHECK(step % 2 == 0);  // of --accumulate 2
  CHECK_THAT(asked.err, ContainsSubstring("the checkpoint of step " + std::to_string(step) +
                                          " is in " + checkpoints + "/" + *written.begin()));
  const auto resumed =
      run_program(two_stages({"--checkpoint-dir", checkpoints, "--resume", std::to_string(step),
                              "--save", folder / "resumed"}));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("step-000012 is of a later step"));
  check_same_weights(calm.weights(), folder / "resumed");
}

TEST_CASE("A signal in an evaluation has a checkpoint written before that is over") {
  const scratch_folder folder;
  const fs::path kept = folder / "kept";
  auto job = evaluated(two_stages({"--eval-every", "4"}, 8, 1), 960);
  const calm_run calm(TROUPE_PROGRAM, job);
  const auto whole = evaluations_in(calm.steps());
  REQUIRE(whole.size() == 2);
  job = with(job, {"--checkpoint-dir", kept.string(), "--checkpoint-on-signal", "SIGUSR1",
                   "--resume", "auto"});
  const auto ask = [] {
    return at_line("step 4/", [](pid_t program) { ::kill(program, SIGUSR1); });
  };
  const auto asked = run_program(with(job, {"--json", folder / "asked"}), ask());
  REQUIRE(asked.code == 0);
  const auto written = asked.err.find("the stages write the checkpoint of step 4");
  REQUIRE(written != std::string::npos);
  CHECK(written < asked.err.find("evaluation after step 4: "));
  CHECK(evaluations_in(folder / "asked") == whole);
  CHECK(early(kept, "step-000008") == std::set<std::string>{"step-000004"});
  CHECK(fs::exists(kept / "step-000004" / "evaluated"));
  // Whoever goes on from it after the evaluation was cut off makes that first.
  fs::remove_all(kept);
  const auto end =
      at_line("the checkpoint of step 4 is in ", [](pid_t program) { ::kill(program, SIGKILL); });
  const auto killed =
      run_program(with(job, {"--json", folder / "killed"}), one_after_other(ask(), end));
  REQUIRE(killed.signal == SIGKILL);
  const auto resumed =
      run_program(with(job, {"--json", folder / "resumed", "--save", folder / "weights"}));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(evaluations_in(folder / "killed", folder / "resumed") == whole);
}

TEST_CASE("A signal in an evaluation inside of an update waits until that is whole") {
  const scratch_folder folder;
  const fs::path kept = folder / "kept";
  const auto asked =
      run_program(evaluated(two_stages({"--eval-every", "3", "--checkpoint-dir", kept.string(),
                                        "--checkpoint-on-signal", "SIGUSR1"},
                                       6),
                            480),
                  at_line("step 3/", [](pid_t program) { ::kill(program, SIGUSR1); }));
  REQUIRE(asked.code == 0);
  CHECK(early(kept, "step-000006") == std::set<std::string>{"step-000004"});
  const auto evaluation = asked.err.find("evaluation after step 3: ");
  REQUIRE(evaluation != std::string::npos);
  CHECK(evaluation < asked.err.find("the stages write the checkpoint of step 4"));
}

TEST_CASE("A signal for a checkpoint that comes before the first step ends nothing") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const auto ask = [](pid_t program) { ::kill(program, SIGUSR1); };
  // Before any process of a stage has been started, and once all have joined.
  const auto outcome = run_program(
      two_stages({"--checkpoint-dir", checkpoints, "--checkpoint-on-signal", "SIGUSR1", "--resume",
                  "latest"},
                 12, 1),
      one_after_other(at_line("has no checkpoint: the run starts from the beginning", ask),
                      at_line("to resume this run from its last checkpoint", ask)));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("a signal asks for a checkpoint"));
  CHECK(early(checkpoints, "step-000012").size() == 1);
}

TEST_CASE("A signal for a checkpoint that comes while a stage is replaced is heeded after that") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto lose = [](pid_t program) { CHECK(signal_to(program, "stage-1")); };
  const auto ask = [](pid_t program) { ::kill(program, SIGUSR1); };
  const auto outcome =
      run_program(two_stages({"--on-fault", "recover", "--checkpoint-dir", checkpoints,
                              "--checkpoint-on-signal", "SIGUSR1", "--save", folder / "weights"}),
                  one_after_other(at_line("step 3/", lose), at_line("; it is replaced", ask)));
  REQUIRE(outcome.code == 0);
  check_same_weights(calm.weights(), folder / "weights");
  const auto written = early(checkpoints, "step-000012");
  REQUIRE(written.size() == 1);
  const auto resumed = run_program(two_stages(
      {"--checkpoint-dir", checkpoints, "--resume",
       std::to_string(std::stoi(written.begin()->substr(5))), "--save", folder / "resumed"}));
  REQUIRE(resumed.code == 0);
  check_same_weights(calm.weights(), folder / "resumed");
}

TEST_CASE(
    "A signal that reaches an agent, or one of its stages, goes to the trainer and harms none") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  write_text(folder / "run.toml", "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM
                                  "\"\n[[node]]\nname = \"alpha\"\nhost = \"\"\ncores = 1\n"
                                  "[[node]]\nname = \"beta\"\nhost = \"\"\ncores = 1\n"
                                  "[checkpoint]\ndir = \"" +
                                      checkpoints + "\"\non_signal = \"SIGUSR2\"\n");
  const auto outcome =
      run_other(TROUPE_COMMAND, with({"launch", folder / "run.toml", "--"}, two_stages({}, 12, 1)),
                at_line("step 3/", [](pid_t trainer) {
                  for (const auto agent : children_of(trainer)) {
                    for (const auto stage : children_of(agent)) {
                      CHECK(::kill(stage, SIGUSR1) == 0);
                      CHECK(::kill(stage, SIGUSR2) == 0);
                    }
                    CHECK(::kill(agent, SIGUSR1) == 0);  // not the one that asks
                  }
                  CHECK(::kill(children_of(trainer).front(), SIGUSR2) == 0);
                }));
  REQUIRE(outcome.code == 0);
  CHECK(early(checkpoints, "step-000012").size() == 1);
}

TEST_CASE("A job that is started again goes on by itself from the newest whole checkpoint") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto job = two_stages({"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4",
                               "--resume", "auto", "--save", folder / "weights"});
  const auto first = run_program(job, at_checkpoint("step-000008", SIGKILL));
  CHECK(first.signal == SIGKILL);
  CHECK_THAT(first.err,
             ContainsSubstring("has no whole checkpoint: the run starts from the beginning"));
  const auto torn = checkpoints / "step-000008" / "weights.stage-1.safetensors";
  flip_a_bit(torn);
  const auto second = run_program(job);
  REQUIRE(second.code == 0);
  CHECK_THAT(second.err, ContainsSubstring("warning: " + torn.string() + " is not as its"));
  CHECK_THAT(second.err, ContainsSubstring("this checkpoint is passed over"));
  CHECK_THAT(second.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", checkpoints.string()}).code == 0);
  const auto third = run_program(job);
  CHECK(third.code == 0);
  CHECK_THAT(third.err, ContainsSubstring("has all 12 steps of this run: nothing is left to do"));
  fs::remove(folder / "weights");
  const auto fourth = run_program(job);
  CHECK(fourth.code == 2);
  const auto last = (checkpoints / "step-000012").string();
  CHECK_THAT(fourth.last_line(), ContainsSubstring("troupe checkpoint export " + last + " " +
                                                   (folder / "weights").string()));
  REQUIRE(run_other(TROUPE_COMMAND, {"checkpoint", "export", last, folder / "weights"}).code == 0);
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(run_program(job).code == 0);
}

TEST_CASE("A run that was ended in its last evaluation does that when it is started again") {
  const scratch_folder folder;
  const auto job = evaluated(two_stages({"--checkpoint-dir", folder / "checkpoints", "--resume",
                                         "auto", "--save", folder / "weights"}),
                             480);
  const auto kill = [](pid_t trainer) { ::kill(trainer, SIGKILL); };
  const auto first = run_program(job, at_line("the checkpoint of step 12 is in ", kill));
  REQUIRE(first.signal == SIGKILL);
  const std::string evaluated = "evaluation after step 12: ";
  REQUIRE_THAT(first.err, !ContainsSubstring(evaluated));
  const auto second = run_program(job);
  REQUIRE(second.code == 0);
  CHECK_THAT(second.err, ContainsSubstring("its last evaluation is left to do"));
  CHECK_THAT(second.err, ContainsSubstring(evaluated));
  const auto third = run_program(job);
  CHECK(third.code == 0);
  CHECK_THAT(third.err, ContainsSubstring("has all 12 steps of this run: nothing is left to do"));
}

TEST_CASE("A run that was interrupted in an evaluation does that first when it goes on") {
  const scratch_folder folder;
  auto job = evaluated(two_stages({"--eval-every", "4"}, 8, 1), 480);
  REQUIRE(run_program(with(job, {"--json", folder / "whole"})).code == 0);
  const auto whole = evaluations_in(folder / "whole");
  REQUIRE(whole.size() == 2);
  job = with(job, {"--checkpoint-dir", folder / "kept", "--resume", "auto"});
  const auto first =
      run_program(with(job, {"--json", folder / "first"}),
                  at_line("step 4/", [](pid_t trainer) { ::kill(trainer, SIGTERM); }));
  REQUIRE(first.code == 143);
  auto told = evaluations_in(folder / "first");
  REQUIRE(names_in(folder / "kept") == std::set<std::string>{"step-000004"});
  // What was told is told once.
  for (const std::string json : {"second", "third"}) {
    const auto next = run_program(with(job, {"--json", folder / json}));
    REQUIRE(next.code == 0);
    if (json == "second")
      for (const auto& each : evaluations_in(folder / json)) CHECK(told.insert(each).second);
    else
      CHECK_FALSE(fs::exists(folder / json));
  }
  CHECK(told == whole);
}

TEST_CASE(
    "A run with torn checkpoints alone starts from the beginning where nobody watches, and says so",
    "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  fs::create_directories(checkpoints / "step-000099");
  write_text(checkpoints / "step-000099" / "manifest.json", "{");
  const auto job = two_stages(
      {"--checkpoint-dir", checkpoints.string(), "--checkpoint-keep", "1", "--resume", "auto"}, 2,
      1);
  const auto outcome = run_program(job);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("step-000099/manifest.json is no manifest"));
  CHECK_THAT(outcome.err,
             ContainsSubstring("has no whole checkpoint: the run starts from the beginning"));
  // What this run writes is not taken for older than what is torn.
  CHECK(names_in(checkpoints) == std::set<std::string>{"step-000002", "step-000099"});
  CHECK_THAT(run_program(job).err, ContainsSubstring("step-000002 has all 2 steps of this run"));
}

TEST_CASE("A folder that takes no checkpoint is refused before the first step", "[untimed]") {
  const scratch_folder folder;
  const auto refused = [&](const fs::path& where, const std::string& why) {
    const auto outcome = run_program(two_stages({"--checkpoint-dir", where.string()}));
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(), ContainsSubstring("--checkpoint-dir: " + where.string()));
    CHECK_THAT(outcome.last_line(), ContainsSubstring(why));
    CHECK_THAT(outcome.err, !ContainsSubstring("step 1/"));
  };
  fs::create_directory(folder / "taken");
  const descriptor taken(::open((folder / "taken").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(taken.get(), LOCK_EX) == 0);  // as a run that writes there
  refused(folder / "taken", "is where another run writes its checkpoints just now");
  const small_disk full(folder / "full", "size=4k");
  if (!full.made()) SKIP("no file system can be mounted: " << full.reason());
  refused(folder / "full", "No space left on device");
  CHECK(names_in(folder / "full").empty());
  const small_disk still(folder / "still");
  REQUIRE(still.made());
  REQUIRE(still.make_read_only());
  refused(folder / "still", "Read-only file system");
}

TEST_CASE("A disk that is too small is warned of at the start, and training goes on without",
          "[untimed]") {
  const scratch_folder folder;
  const small_disk small(folder / "small", "size=8m");
  if (!small.made()) SKIP("no file system can be mounted: " << small.reason());
  const std::string where = folder / "small";
  const auto outcome =
      run_program(large_two_stages({"--checkpoint-dir", where, "--checkpoint-every", "4"}, 8));
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: --checkpoint-dir: " + where +
                                            " has 8 MiB left, "
                                            "and the weights alone of one checkpoint need 42 MiB"));
  for (const auto* step : {"4", "8"})
    CHECK_THAT(outcome.err,
               ContainsSubstring(std::string("warning: no checkpoint of step ") + step));
  CHECK(names_in(where).empty());
}

TEST_CASE("A disk that becomes read-only during a run is a warning") {
  const scratch_folder folder;
  const small_disk disk(folder / "disk", "size=1g");
  if (!disk.made()) SKIP("no file system can be mounted: " << disk.reason());
  const std::string where = folder / "disk";
  const auto make_read_only = [&](pid_t) {
    // Not while the next checkpoint is open for writing there.
    for (int tries = 0; tries < 2000 && !disk.make_read_only(); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  const auto outcome =
      run_program(two_stages({"--checkpoint-dir", where, "--checkpoint-every", "4"}, 24),
                  at_line("step-000004 in ", make_read_only));
  CHECK(outcome.code == 0);
  const std::string warns = "warning: no checkpoint of step ";
  const auto first = outcome.err.find(warns);
  REQUIRE(first != std::string::npos);
  CHECK_THAT(outcome.err, ContainsSubstring("Read-only file system; training goes on"));
  const auto missed = std::strtoull(&outcome.err[first + warns.size()], nullptr, 10);
  auto names = names_in(where);
  const auto name_of = [](std::uint64_t step) {
    return (step < 10 ? "step-00000" : "step-0000") + std::to_string(step);
  };
  for (std::uint64_t step = 4; step < missed; step += 4) CHECK(names.erase(name_of(step)) == 1);
  // One that was begun before cannot be removed there.
  for (const auto& each : names) CHECK(each.starts_with(".writing-" + name_of(missed) + "-"));
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", where}).code == 0);
}

TEST_CASE(
    "A checkpoint whose last bytes find no room is a warning at a later step, and leaves nothing") {
  const scratch_folder folder;
  const fs::path roomy = folder / "roomy";
  REQUIRE(run_program(two_stages({"--checkpoint-dir", roomy.string()}, 2, 1)).code == 0);
  constexpr std::uintmax_t page = 4096;
  std::uintmax_t needed = 0;  // without the manifest
  for (const auto* stage : {"stage-0", "stage-1"})
    for (const auto* kind : {"weights.", "state."}) {
      const auto name = std::string(kind) + stage + ".safetensors";
      needed += (fs::file_size(roomy / "step-000002" / name) + page - 1) / page * page;
    }
  REQUIRE(fs::file_size(roomy / "step-000002" / "manifest.json") > page);
  const small_disk disk(folder / "disk", "size=" + std::to_string(needed + page));
  if (!disk.made()) SKIP("no file system can be mounted: " << disk.reason());
  const std::string where = folder / "disk";
  const auto outcome =
      run_program(two_stages({"--checkpoint-dir", where, "--checkpoint-every", "2"}, 4, 1));
  CHECK(outcome.code == 0);
  for (const auto* step : {"2", "4"})
    CHECK_THAT(outcome.err,
               ContainsSubstring("warning: no checkpoint of step " + std::string(step) + ": "));
  CHECK_THAT(outcome.err, ContainsSubstring("No space left on device; training goes on"));
  CHECK(names_in(where).empty());
}
