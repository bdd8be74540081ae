// A run that was killed or interrupted goes on from its last checkpoint, to the bits of a run that
// nothing happened to; and what is wrong with a checkpoint is said.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "messages/descriptor.hpp"
#include "tests/grey_image.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using namespace troupe::tests;

/// The loss scale of each step that a run's JSON lines tell.
std::map<int, double> scales_in(const fs::path& json) {
  std::map<int, double> scales;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);) {
    const auto told = nlohmann::json::parse(line);
    scales[told.at("step").get<int>()] = told.at("loss_scale").get<double>();
  }
  return scales;
}

}  // namespace

TEST_CASE(
    "A run that is killed goes on from its checkpoint to the same bits, also in other stages and "
    "over another link") {
  const scratch_folder folder;
  const fs::path kept_in = folder / "checkpoints";
  const std::string checkpoints = kept_in;
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const words kept{"--checkpoint-dir", checkpoints, "--checkpoint-every", "4"};
  const auto killed =
      run_program(two_stages(with(kept, {"--link", "shm"})), at_checkpoint("step-000008", SIGKILL));
  CHECK(killed.signal == SIGKILL);
  auto left = names_in(checkpoints);  // perhaps with what had begun of the next one
  std::erase_if(left, [](const auto& name) { return name.starts_with(".writing-step-000012-"); });
  CHECK(left == std::set<std::string>{"step-000004", "step-000008"});
  const auto resumed =
      run_program(training(with(kept, {"--stages", "3", "--schedule", "zb-h1", "--resume", "latest",
                                       "--save", folder / "resumed"})));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK(names_in(checkpoints) ==
        std::set<std::string>{"step-000004", "step-000008", "step-000012"});
  check_same_weights(calm.weights(), folder / "resumed");
  const auto from_the_fourth =
      run_program(two_stages({"--link", "tcp", "--checkpoint-dir", checkpoints, "--resume", "4",
                              "--save", folder / "again"}));
  REQUIRE(from_the_fourth.code == 0);
  check_same_weights(calm.weights(), folder / "again");
  const auto cut_otherwise =
      run_program(training({"--stages", "3", "--cut", "relu,fc", "--schedule", "gpipe", "--resume",
                            (kept_in / "step-000008").string(), "--save", folder / "cut"}));
  REQUIRE(cut_otherwise.code == 0);
  CHECK_THAT(cut_otherwise.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(calm.weights(), folder / "cut");
}

TEST_CASE("A run writes a checkpoint whenever its period is over", "[untimed]") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  int told = 0;
  const auto stop_at_second = [&](pid_t program, std::string_view line) {
    const bool is_told = line.find("checkpoint ") != std::string_view::npos &&
                         line.find("/step-") != std::string_view::npos &&
                         line.find(" in ") != std::string_view::npos;
    if (is_told && ++told == 2) ::kill(program, SIGTERM);
  };
  const auto outcome = run_program(
      two_stages({"--checkpoint-dir", checkpoints, "--checkpoint-every", "1s"}, 100000, 1),
      stop_at_second);
  CHECK(outcome.code == 143);
  CHECK(outcome.seconds.count() > 2);
  CHECK(names_in(checkpoints).size() >= 2);
  CHECK(run_other(TROUPE_COMMAND, {"checkpoint", "verify", checkpoints}).code == 0);
}

TEST_CASE("An interrupted run leaves a checkpoint, from which it goes on to the same bits") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints, "--resume", "latest"};
  const calm_run calm(TROUPE_PROGRAM, two_stages({}, 12, 1));
  const auto interrupted = run_program(two_stages(with(kept, {"--checkpoint-every", "1"}), 12, 1),
                                       at_checkpoint("step-000003", SIGTERM));
  CHECK(interrupted.code == 143);
  CHECK_THAT(interrupted.err,
             ContainsSubstring("has no checkpoint: the run starts from the beginning"));
  const auto resumed = run_program(two_stages(with(kept, {"--save", folder / "resumed"}), 12, 1));
  REQUIRE(resumed.code == 0);
  check_same_weights(calm.weights(), folder / "resumed");
  const auto nothing_left = run_program(two_stages(kept, 12, 1));
  CHECK(nothing_left.code == 2);
  CHECK_THAT(nothing_left.last_line(), ContainsSubstring("has all 12 steps of this run"));
}

TEST_CASE("A run that is interrupted inside of an update ends that first, and keeps it") {
  // The update of steps 1 to 6, with two evaluations inside of it.
  const auto run = evaluated(two_stages({"--eval-every", "2"}, 12, 6), 960);
  const calm_run calm(TROUPE_PROGRAM, run);
  const auto whole = evaluations_in(calm.steps());
  REQUIRE(whole.size() == 6);
  for (const std::string line : {"step 2/", "step 3/"}) {
    INFO(line);
    const scratch_folder folder;
    const auto job = with(run, {"--checkpoint-dir", folder / "checkpoints", "--resume", "auto",
                                "--save", folder / "weights"});
    const auto interrupted =
        run_program(with(job, {"--json", folder / "first"}),
                    at_line(line, [](pid_t program) { ::kill(program, SIGTERM); }));
    CHECK(interrupted.code == 143);
    CHECK(names_in(folder / "checkpoints") == std::set<std::string>{"step-000006"});
    const auto resumed = run_program(with(job, {"--json", folder / "second"}));
    REQUIRE(resumed.code == 0);
    check_same_weights(calm.weights(), folder / "weights");
    CHECK(evaluations_in(folder / "first", folder / "second") == whole);
  }
}

TEST_CASE("A run that is killed before a step was reported goes on from no checkpoint of it") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints, "--checkpoint-every", "1"};
  // The first line waits until somebody reads, and nobody does.
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const descriptor full(::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  const std::string page(4096, '.');
  while (::write(full.get(), page.data(), page.size()) > 0) {
  }
  const auto kill_at_files = [](pid_t program, std::string_view line) {
    const bool are_there = line.find(" waits until the step is reported") != std::string::npos ||
                           line.find("step-000001 in ") != std::string::npos;
    if (are_there) ::kill(program, SIGKILL);
  };
  const auto killed =
      run_program(two_stages(with(kept, {"--json", pipe.string()}), 4, 1), kill_at_files);
  CHECK(killed.signal == SIGKILL);
  CHECK_FALSE(names_in(checkpoints).contains("step-000001"));
  const auto resumed =
      run_program(two_stages(with(kept, {"--resume", "auto", "--json", folder / "lines"}), 4, 1));
  REQUIRE(resumed.code == 0);
  std::ifstream lines(folder / "lines");
  std::string line;
  for (const char* begin : {"{\"step\":1,", "{\"step\":2,", "{\"step\":3,", "{\"step\":4,"}) {
    std::getline(lines, line);
    CHECK(line.starts_with(begin));
  }
}

TEST_CASE("A loss scale, dropout and a sequence of tokens go on where they were", "[untimed]") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  std::string text;
  for (int i = 0; i < 400; ++i) text += "All the world is a stage, number " + std::to_string(i);
  write_text(folder / "text.txt", text);
  const words run = words{"--data", "text:" + (folder / "text.txt").string()} +
                    split_words(
                        "--batch-size 8 --context 16 --steps 8 --no-eval --stages 2 --dropout "
                        "0.2 --loss-scale dynamic --loss-scale-interval 3 --width 32 --heads 2 "
                        "--layers 4 --verbose");
  const auto train = [&](const words& more, auto... watch) {
    return run_other(TROUPE_TRANSFORMER, with(run, more), watch...);
  };
  const auto whole = train({"--save", folder / "whole", "--json", folder / "whole.json"});
  REQUIRE(whole.code == 0);
  const words kept{"--checkpoint-dir", checkpoints, "--checkpoint-every", "5"};
  CHECK(train(kept, at_checkpoint("step-000005", SIGKILL)).signal == SIGKILL);
  const auto resumed = train(with(kept, {"--resume", "latest", "--save", folder / "resumed",
                                         "--json", folder / "resumed.json"}));
  REQUIRE(resumed.code == 0);
  check_same_weights(folder / "whole", folder / "resumed");
  // It grows after steps 3 and 6, and changes no bit in f32.
  auto scales = scales_in(folder / "whole.json");
  CHECK(scales.at(8) == 4 * scales.at(1));
  std::erase_if(scales, [](const auto& each) { return each.first <= 5; });
  CHECK(scales_in(folder / "resumed.json") == scales);
}

TEST_CASE("Old checkpoints go, and what was half written", "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  fs::create_directories(checkpoints / ".writing-step-000099-0123456789abcdef");
  write_text(checkpoints / "notes.txt", "not ours");
  const auto outcome =
      run_program(two_stages({"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "2",
                              "--checkpoint-keep", "2"}));
  REQUIRE(outcome.code == 0);
  CHECK(names_in(checkpoints) == std::set<std::string>{"notes.txt", "step-000010", "step-000012"});
}

TEST_CASE("A checkpoint that is torn or altered is refused by its file, and an older one offered",
          "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "2"};
  REQUIRE(run_program(two_stages(kept, 4)).code == 0);
  const auto newest = checkpoints / "step-000004";
  const auto saved = folder / "saved";
  fs::copy(newest, saved, fs::copy_options::recursive);
  const auto refused = [&](const std::string& expected, const std::function<void()>& harm) {
    fs::remove_all(newest);
    fs::copy(saved, newest, fs::copy_options::recursive);
    harm();
    const auto outcome = run_program(two_stages(with(kept, {"--resume", "latest"})));
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(), ContainsSubstring(expected));
    CHECK_THAT(outcome.last_line(), ContainsSubstring("--resume 2"));
  };
  const auto weights = newest / "weights.stage-1.safetensors";
  const auto state = newest / "state.stage-0.safetensors";
  const auto manifest = newest / "manifest.json";
  const std::string altered = " is not as its checkpoint wrote it: tensor \"";
  refused(weights.string() + altered, [&] { flip_a_bit(weights); });
  refused(state.string() + altered + "optimizer.", [&] { flip_a_bit(state); });
  refused(weights.string() + " has 1000 bytes", [&] { fs::resize_file(weights, 1000); });
  // Also where it is named by its step or its folder.
  const std::string older = checkpoints / "step-000002";
  const std::map<std::string, std::string> offers{
      {"4", "2"}, {newest.string(), older}, {manifest.string(), older}};
  for (const auto& [named, offered] : offers) {
    const auto outcome = run_program(two_stages(with(kept, {"--resume", named})));
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(), ContainsSubstring(weights.string() + " has 1000 bytes") &&
                                        EndsWith(" is whole: --resume " + offered));
  }
  refused(state.string() + " cannot be read", [&] { fs::remove(state); });
  refused(manifest.string() + " is no manifest", [&] { fs::resize_file(manifest, 40); });
  refused("its format is number 5", [&] { write_text(manifest, R"({"troupe_checkpoint": 5})"); });
  const auto unwatched = run_program(two_stages(with(kept, {"--resume", "auto"})));
  CHECK(unwatched.code == 2);  // or an older program would begin again
  CHECK_THAT(unwatched.last_line(),
             ContainsSubstring("its format is number 5") && EndsWith("--resume 2"));
  CHECK(run_program(two_stages(with(kept, {"--resume", "2"}), 4)).code == 0);
}

TEST_CASE(
    "A checkpoint that the disk cannot read is refused by its file, and an older one offered or "
    "taken",
    "[untimed]") {
  const scratch_folder folder;
  const fs::path checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};
  REQUIRE(run_program(two_stages(kept), at_checkpoint("step-000008", SIGKILL)).signal == SIGKILL);
  const auto bad = folder / "bad";
  const auto resume = [&](const std::string& file, const words& from) {
    fs::remove(bad);
    fs::create_hard_link(file, bad);
    return run_other("/usr/bin/env", with_unreadable(bad, two_stages(with(kept, from))));
  };
  const auto newest = checkpoints / "step-000008";
  const std::string unread = " cannot be read: Input/output error";
  for (const auto& [name, of] :
       std::map<std::string, std::string>{{"weights.stage-1.safetensors", " (tensor \""},
                                          {"state.stage-0.safetensors", " (tensor \"optimizer."},
                                          {"manifest.json", ""}}) {
    const auto file = (newest / name).string();
    for (const std::string from : {"latest", "8"}) {
      const auto refused = resume(file, {"--resume", from});
      CHECK(refused.code == 2);
      CHECK_THAT(refused.last_line(), ContainsSubstring(file + unread + of) &&
                                          EndsWith("; the one of step 4 is whole: --resume 4"));
    }
  }
  const auto file = (newest / "weights.stage-1.safetensors").string();
  const auto passed = resume(file, {"--resume", "auto", "--save", folder / "resumed"});
  REQUIRE(passed.code == 0);
  CHECK_THAT(passed.err, ContainsSubstring(file + unread) &&
                             ContainsSubstring("; this checkpoint is passed over") &&
                             ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(calm_run(TROUPE_PROGRAM, two_stages({})).weights(), folder / "resumed");
}

namespace {

/// A run that was killed behind its checkpoints of steps 4 and 8.
struct killed_behind_8 {
  scratch_folder folder;
  fs::path checkpoints = folder / "checkpoints", newest = checkpoints / "step-000008";
  words kept{"--checkpoint-dir", checkpoints.string(), "--checkpoint-every", "4"};

  killed_behind_8() {
    REQUIRE(run_program(two_stages(kept), at_checkpoint("step-000008", SIGKILL)).signal == SIGKILL);
  }

  /// Where a file of the newest one cannot be read; `how`: see with_unreadable.
  [[nodiscard]] program_outcome resume(const std::string& name, const words& from,
                                       const words& how) const {
    const auto bad = folder / "bad";
    fs::remove(bad);
    fs::create_hard_link(newest / name, bad);
    return run_other("/usr/bin/env", with_unreadable(bad, two_stages(with(kept, from)), how));
  }

  [[nodiscard]] std::string unread(const std::string& name) const {
    return (newest / name).string() + " cannot be read: Input/output error";
  }
};

const std::string some_weights = "weights.stage-1.safetensors";
/// The trainer compares the checksums, and then looks for NaN.
const words after_the_check{"TROUPE_UNREADABLE_AFTER=1"};

}  // namespace

TEST_CASE(
    "A checkpoint that a stage alone cannot read is refused by its file, and an older one offered",
    "[untimed]") {
  const killed_behind_8 run;
  const auto refused = [&](const std::string& from, const words& how, const std::string& offer) {
    const auto outcome = run.resume(some_weights, {"--resume", from}, how);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(), ContainsSubstring(run.unread(some_weights)) && EndsWith(offer));
  };
  const std::string by_step = "; the one of step 4 is whole: --resume 4";
  for (const std::string from : {"latest", "8"}) {
    refused(from, to_stages, by_step);
    refused(from, after_the_check, by_step);
  }
  refused(run.newest.string(), to_stages,
          "; an older one is whole: --resume " + (run.checkpoints / "step-000004").string());
}

TEST_CASE("With --resume auto a checkpoint that a stage alone cannot read is passed over",
          "[untimed]") {
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const killed_behind_8 run;
  const auto& folder = run.folder;
  fs::copy(run.checkpoints, folder / "copy", fs::copy_options::recursive);
  const auto passed = [&](const std::string& name, const words& how, const std::string& why,
                          const words& more = {}) {
    fs::remove_all(run.checkpoints);
    fs::copy(folder / "copy", run.checkpoints, fs::copy_options::recursive);
    fs::remove(folder / "json");
    const auto outcome = run.resume(
        name,
        with({"--resume", "auto", "--save", folder / "resumed", "--json", folder / "json"}, more),
        how);
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring(why) &&
                                ContainsSubstring("; this checkpoint is passed over") &&
                                ContainsSubstring("goes on from the checkpoint of step 4"));
    CHECK(steps_in(folder / "json") == std::vector<int>{5, 6, 7, 8, 9, 10, 11, 12});
    check_same_weights(calm.weights(), folder / "resumed");
  };
  const std::string state = "state.stage-0.safetensors";
  passed(some_weights, to_stages, run.unread(some_weights));
  passed(state, to_stages, run.unread(state));
  passed(some_weights, after_the_check, run.unread(some_weights));
  passed(some_weights, {"TROUPE_UNREADABLE_AFTER=2"},
         run.unread(some_weights) + "; this checkpoint is checked and read once more",
         {"--stages-in", "threads"});
  passed(some_weights, with(to_stages, {"TROUPE_UNREADABLE_WRITTEN=1"}),
         (run.newest / some_weights).string() + " was changed while it was to be read");
}

TEST_CASE("A checkpoint that a stage cannot read once, or that was touched, is not passed over",
          "[untimed]") {
  const calm_run calm(TROUPE_PROGRAM, two_stages({}));
  const killed_behind_8 run;
  const auto& folder = run.folder;
  const auto once = with(to_stages, {"TROUPE_UNREADABLE_TIMES=1"});
  const auto check_read = [&](const words& how, const std::string& why) {
    fs::remove(folder / "json");
    const auto outcome = run.resume(
        some_weights, {"--resume", "auto", "--save", folder / "resumed", "--json", folder / "json"},
        how);
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err,
               ContainsSubstring(why + "; this checkpoint is checked and read once more") &&
                   !ContainsSubstring("passed over"));
    CHECK(steps_in(folder / "json") == std::vector<int>{9, 10, 11, 12});
    check_same_weights(calm.weights(), folder / "resumed");
    fs::remove_all(run.checkpoints / "step-000012");
  };
  check_read(once, run.unread(some_weights));
  check_read(with(once, {"TROUPE_UNREADABLE_WRITTEN=1"}),
             (run.newest / some_weights).string() + " was changed while it was to be read");
}

TEST_CASE("With --resume auto a run begins anew where a stage cannot read its only checkpoint",
          "[untimed]") {
  const killed_behind_8 run;
  fs::remove_all(run.checkpoints / "step-000004");
  const auto fresh =
      run.resume(some_weights, {"--resume", "auto", "--save", run.folder / "anew"}, to_stages);
  REQUIRE(fresh.code == 0);
  CHECK_THAT(fresh.err,
             ContainsSubstring(run.unread(some_weights)) &&
                 ContainsSubstring(" has no whole checkpoint: the run starts from the beginning"));
  check_same_weights(calm_run(TROUPE_PROGRAM, two_stages({})).weights(), run.folder / "anew");
}

TEST_CASE("A checkpoint of other settings, or of none, is refused with a remedy", "[untimed]") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const words kept{"--checkpoint-dir", checkpoints};
  REQUIRE(run_program(two_stages(kept, 2)).code == 0);
  const auto refused = [&](const words& more, const words& expected) {
    const auto outcome = run_program(two_stages(more));
    CHECK(outcome.code == 2);
    for (const auto& each : expected) CHECK_THAT(outcome.last_line(), ContainsSubstring(each));
  };
  refused(with(kept, {"--resume", "latest", "--seed", "9"}),
          {"train.seed = 1", "this one has 9", "troupe checkpoint export", "--init FILE"});
  refused(with(kept, {"--resume", "latest", "--no-shuffle"}), {"data.shuffle = true"});
  refused(with(kept, {"--resume", "7"}), {"no checkpoint of step 7", "those of steps 2"});
  refused(with(kept, {"--checkpoint-every", "3"}), {"3 steps", "--accumulate 2"});
  refused(with(kept, {"--checkpoint-every", "soon"}), {"\"soon\" is no period", "5m"});
  refused({"--checkpoint-every", "2"}, {"--checkpoint-dir"});
  refused({"--resume", "latest"}, {"--checkpoint-dir"});
  refused({"--resume", "auto"}, {"--checkpoint-dir"});
  refused({"--checkpoint-on-signal", "SIGUSR1"}, {"--checkpoint-dir"});
  refused(with(kept, {"--checkpoint-on-signal", "SIGTERM"}), {"SIGTERM", "take SIGUSR1"});
  write_text(folder / "file", "");
  const auto nowhere = run_program(two_stages({"--checkpoint-dir", folder / "file" / "below"}));
  CHECK(nowhere.code != 0);
  CHECK_THAT(nowhere.last_line(), ContainsSubstring("--checkpoint-dir: "));
  CHECK_THAT(nowhere.err, !ContainsSubstring("step 1"));
}

TEST_CASE("A run whose data have changed since its checkpoint is refused, wherever they are",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "text.txt";
  const auto write = [&](const std::string& first) {
    std::string text = first;
    for (int i = 0; i < 100; ++i) text += "All the world is a stage, number " + std::to_string(i);
    write_text(file, text);
  };
  const words run = words{"--data", "text:" + file.string()} +
                    split_words(
                        "--batch-size 4 --context 16 --no-eval --stages 2 --width 32 --heads 2 "
                        "--layers 2");
  for (const words& where : {words(), words{"--data-node", "stage-0"}}) {
    write("Prologue. ");
    const words kept{"--checkpoint-dir", folder / ("checkpoints" + std::to_string(where.size()))};
    const auto train = [&](const words& more) {
      return run_other(TROUPE_TRANSFORMER, run + where + kept + more);
    };
    REQUIRE(train({"--steps", "2"}).code == 0);
    const words goes_on{"--steps", "3", "--resume", "auto"};
    write("prologue. ");
    const auto changed = train(goes_on);
    CHECK(changed.code == 2);
    CHECK_THAT(changed.last_line(), ContainsSubstring("has as many samples, but not the same") &&
                                        ContainsSubstring("--init FILE"));
    write("A much longer prologue, of which samples come. ");
    const auto grown = train(goes_on);
    CHECK(grown.code == 2);
    CHECK_THAT(grown.last_line(),
               ContainsSubstring("has changed since") && ContainsSubstring(" training and "));
    write("Prologue. ");
    CHECK(train(goes_on).code == 0);
  }
}

TEST_CASE("A sample that cannot be read is left out again when a run goes on, or told",
          "[untimed]") {
  const scratch_folder folder;
  write_grey_images(folder / "images", 12);
  const auto broken = folder / "images" / "train" / "a" / "3.png";
  write_text(broken, "no image");
  auto run = two_stages({"--image-size", "48"}, 8, 1);
  std::ranges::replace(run, std::string("synthetic:3x48x48:10:48"),
                       "folder:" + (folder / "images").string());
  REQUIRE(run_program(with(run, {"--save", folder / "whole"})).code == 0);
  const auto job = with(run, {"--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", "4",
                              "--save", folder / "resumed"});
  // All samples have been read by then.
  REQUIRE(run_program(job, at_checkpoint("step-000004", SIGKILL)).signal == SIGKILL);
  const std::string told = "1 sample could not be read before ";
  const auto resumed = run_program(with(job, {"--resume", "latest"}));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, !ContainsSubstring(told));
  check_same_weights(folder / "whole", folder / "resumed");
  write_text(broken, grey_png());
  const auto again = run_program(with(job, {"--resume", "4"}));
  REQUIRE(again.code == 0);
  CHECK_THAT(again.err, ContainsSubstring("warning: " + told) &&
                            ContainsSubstring("step-000004 was written, and can be read now: " +
                                              broken.string()));
}

TEST_CASE("A checkpoint that finds no room is a warning, and training goes on", "[untimed]") {
  const scratch_folder folder;
  const auto outcome = run_other(
      "/bin/sh", {"-c", shell_line("ulimit -f 120000; trap '' XFSZ;",
                                   large_two_stages({"--checkpoint-dir", folder / "checkpoints",
                                                     "--checkpoint-every", "4"},
                                                    6))});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("warning: no checkpoint of step 4"));
  CHECK_THAT(outcome.err, ContainsSubstring("training goes on"));
  CHECK(names_in(folder / "checkpoints").empty());
}
