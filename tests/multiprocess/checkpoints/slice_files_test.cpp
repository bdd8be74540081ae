// The files of a checkpoint, which each stage's process writes for itself: while steps go on, where
// one of them cannot, where one is lost meanwhile, and as other runs read them.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/checkpoints/stages_by_hand.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;
using contents = cluster::checkpoint_manifest::contents;

cluster::whole_checkpoint whole(const fs::path& folder) {
  auto read = cluster::read_whole(folder);
  INFO((read ? "" : read.error().text));
  REQUIRE(read);
  return *read;
}

std::set<std::string> files_of(const fs::path& checkpoint) {
  auto names = names_in(checkpoint);
  CHECK(names.erase("manifest.json") == 1);
  return names;
}

constexpr auto begun_8 = "the stages write the checkpoint of step 8";

}  // namespace

TEST_CASE("Each stage writes its own files, and other stages go on from them to the same bits",
          "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};
  const words of_two{"--logical-replicas", "2"};
  const calm_run calm(TROUPE_PROGRAM, two_stages(of_two));
  const auto killed = run_program(two_stages(with(kept, {"--replicas", "2", "--zero", "1"})),
                                  at_checkpoint("step-000008", SIGKILL));
  CHECK(killed.signal == SIGKILL);
  CHECK(files_of(checkpoints / "step-000008") ==
        std::set<std::string>{"state.stage-0.replica-1.safetensors", "state.stage-0.safetensors",
                              "state.stage-1.replica-1.safetensors", "state.stage-1.safetensors",
                              "weights.stage-0.safetensors", "weights.stage-1.safetensors"});
  // Three stages of two chunks each, of one replica.
  const auto resumed = run_program(
      training(with(with(kept, of_two), {"--stages", "3", "--schedule", "interleaved-1f1b",
                                         "--resume", "latest", "--save", folder / "resumed"})));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(calm.weights(), folder / "resumed");
  CHECK(files_of(checkpoints / "step-000012").size() == 6);
  const auto again = run_program(
      training(with(of_two, {"--checkpoint-dir", checkpoints.string(), "--resume", "8", "--stages",
                             "4", "--schedule", "gpipe", "--save", folder / "again"})));
  REQUIRE(again.code == 0);
  check_same_weights(calm.weights(), folder / "again");
}

TEST_CASE("A run goes on from a checkpoint of two files, as older versions wrote it", "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints", older = folder / "older";
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4",
                   "--save",           folder / "whole"};
  REQUIRE(run_program(two_stages(kept)).code == 0);
  const auto newer = whole(checkpoints / "step-000008");
  const auto made =
      write_two_files(older, 8, newer.manifest.settings,
                      {tensors_of(newer, contents::weights), tensors_of(newer, contents::state)});
  CHECK(whole(made).manifest.is_of_two_files());
  const auto resumed = run_program(two_stages(
      {"--checkpoint-dir", older.string(), "--resume", "latest", "--save", folder / "resumed"}));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(folder / "whole", folder / "resumed");
  CHECK_FALSE(whole(older / "step-000012").manifest.is_of_two_files());
}

TEST_CASE("A run goes on from a checkpoint with the checksums of older versions", "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};
  const auto killed = run_program(two_stages(kept), at_checkpoint("step-000008", SIGKILL));
  REQUIRE(killed.signal == SIGKILL);
  const auto older = checkpoints / "step-000008";
  write_text(older / "manifest.json", older_manifest(older / "manifest.json", older));
  const auto sums_of = [](const fs::path& checkpoint) {
    return whole(checkpoint).manifest.files.begin()->second.sums.by;
  };
  REQUIRE(sums_of(older) == engine::checksum_kind::blake2b);
  const auto resumed =
      run_program(two_stages(with(kept, {"--resume", "latest", "--save", folder / "resumed"})));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(calm.weights(), folder / "resumed");
  CHECK(sums_of(checkpoints / "step-000012") == engine::checksum_kind::xxh3);
}

TEST_CASE("A run that is killed while its stages write goes on from the checkpoint before") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, large_two_stages({}));
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};
  const auto killed = run_program(large_two_stages(kept), at_line(begun_8, [](pid_t trainer) {
                                    for (const auto stage : children_of(trainer))
                                      ::kill(stage, SIGKILL);
                                    ::kill(trainer, SIGKILL);
                                  }));
  CHECK(killed.signal == SIGKILL);
  auto names = names_in(checkpoints);
  CHECK(names.erase("step-000004") == 1);
  REQUIRE(names.size() == 1);
  CHECK(names.begin()->starts_with(".writing-step-000008-"));
  const auto listed = run_other(TROUPE_COMMAND, {"checkpoint", "list", checkpoints.string()});
  CHECK(listed.code == 0);
  CHECK_THAT(listed.out, ContainsSubstring("half written"));
  const auto resumed = run_program(
      large_two_stages(with(kept, {"--resume", "latest", "--save", folder / "resumed"})));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(calm.weights(), folder / "resumed");
  CHECK(names_in(checkpoints) ==
        std::set<std::string>{"step-000004", "step-000008", "step-000012"});
}

TEST_CASE("A run that is told to end while its stages write completes that checkpoint") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, large_two_stages({}));
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};
  const auto ended = run_program(large_two_stages(kept),
                                 at_line(begun_8, [](pid_t trainer) { ::kill(trainer, SIGTERM); }));
  CHECK(ended.code == 143);
  CHECK(names_in(checkpoints).contains("step-000008"));
  for (const auto& each : names_in(checkpoints)) CHECK(each.starts_with("step-"));
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", checkpoints.string()}).code == 0);
  const auto resumed = run_program(
      large_two_stages(with(kept, {"--resume", "latest", "--save", folder / "resumed"})));
  REQUIRE(resumed.code == 0);
  check_same_weights(calm.weights(), folder / "resumed");
}

TEST_CASE("A stage that is lost while it writes is replaced, and the checkpoints are whole") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const calm_run calm(TROUPE_PROGRAM, large_two_stages({}, 12, 1));
  const auto outcome = run_program(
      large_two_stages({"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4",
                        "--on-fault", "recover", "--save", folder / "weights"},
                       12, 1),
      at_line(begun_8, [](pid_t trainer) { ::kill(children_of(trainer).back(), SIGKILL); }));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("it is replaced"));
  check_same_weights(calm.weights(), folder / "weights");
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", checkpoints.string()}).code == 0);
  const auto names = names_in(checkpoints);
  CHECK(names.contains("step-000004"));
  CHECK(names.contains("step-000012"));
  for (const auto& each : names) CHECK(each.starts_with("step-"));
}

TEST_CASE("Steps go on while a stage writes its files") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  std::unique_ptr<stopped_thread> stopped;
  const auto outcome = run_program(
      two_stages({"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"}, 12, 1),
      [&](pid_t trainer, std::string_view line) {
        if (line.find("step-000004 in ") != std::string_view::npos)
          stopped = std::make_unique<stopped_thread>(children_of(trainer).back(), "checkpoints");
        if (line.find("step 11/") == std::string_view::npos) return;
        for (const auto stage : children_of(trainer)) ::kill(stage, SIGKILL);
        ::kill(trainer, SIGKILL);
      });
  CHECK(outcome.signal == SIGKILL);
  CHECK_THAT(outcome.err, ContainsSubstring(begun_8));
  auto names = names_in(checkpoints);
  CHECK(names.erase("step-000004") == 1);
  REQUIRE(names.size() == 1);
  CHECK(names.begin()->starts_with(".writing-step-000008-"));
}

TEST_CASE("A file of one stage that finds no room is a warning by stage and file", "[untimed]") {
  const scratch_folder folder;
  const fs::path roomy = folder / "roomy", checkpoints = folder / "checkpoints";
  const auto run = [](const fs::path& where) {
    return large_two_stages({"--checkpoint-dir", where.string(), "--checkpoint-every", "2"}, 4, 1);
  };
  REQUIRE(run_program(run(roomy)).code == 0);
  const auto size = [&](const char* file) { return fs::file_size(roomy / "step-000002" / file); };
  const auto most = size("state.stage-1.safetensors") - 1;
  REQUIRE(size("state.stage-0.safetensors") < most);
  REQUIRE(size("weights.stage-1.safetensors") < most);
  const auto outcome = run_other(
      "/bin/sh", {"-c", shell_line("ulimit -f " + std::to_string(most / 512) + "; trap '' XFSZ;",
                                   run(checkpoints))});
  CHECK(outcome.code == 0);
  for (const auto* step : {"2", "4"})
    CHECK_THAT(outcome.err, ContainsSubstring("warning: no checkpoint of step " +
                                              std::string(step) + ": stage-1: cannot write "));
  CHECK_THAT(outcome.err, ContainsSubstring("/state.stage-1.safetensors: the write failed: File "
                                            "too large; training goes on"));
  CHECK(names_in(checkpoints).empty());
}

TEST_CASE("What stages write that do not see the trainer's disk comes to be there all the same",
          "[untimed]") {
  const scratch_folder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  stages_by_hand stages(folder);
  if (run_other("/usr/bin/unshare", {"-m", "--propagation", "private", "/bin/true"}).code != 0)
    SKIP("no namespace of mounts can be made");
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const auto run =
      two_stages({"--config", stages.config(), "--checkpoint-dir", (disk / "checkpoints").string(),
                  "--checkpoint-every", "4", "--save", folder / "weights"});
  const auto afterwards = std::string(TROUPE_COMMAND) + " checkpoint verify " +
                          (disk / "checkpoints").string() + " && cp -r " +
                          (disk / "checkpoints").string() + " " + (folder / "copied").string();
  const auto outcome = run_other("/usr/bin/unshare",
                                 {"-m", "--propagation", "private", "/bin/sh", "-c",
                                  "mount -t tmpfs none " + disk.string() + " && ( " +
                                      shell_line("", run) + " ) && " + afterwards},
                                 [&](pid_t, std::string_view line) { stages.start_awaited(line); });
  REQUIRE(outcome.code == 0);
  CHECK(stages.size() == 2);
  CHECK(fs::is_empty(disk));  // as everybody else sees it
  check_same_weights(calm.weights(), folder / "weights");
  const auto resumed = run_program(two_stages({"--checkpoint-dir", (folder / "copied").string(),
                                               "--resume", "8", "--save", folder / "resumed"}));
  REQUIRE(resumed.code == 0);
  check_same_weights(calm.weights(), folder / "resumed");
}
