// The process of a stage reads the data, and is lost: another one opens them, and reads and feeds
// the batches of the steps that are done again once more.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <string_view>

#include "tests/grey_image.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/multiprocess/recovery/disturbed_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe::tests::recovery;
using troupe::tests::at_line;
using troupe::tests::count_of;
using troupe::tests::program_outcome;
using troupe::tests::run_other;
using troupe::tests::saboteur;
using troupe::tests::scratch_folder;
using troupe::tests::split_words;
using troupe::tests::wait_until_there;
using troupe::tests::words;
using troupe::tests::write_text;
using troupe::tests::operator+;

/// A text, and one with other letters.
const std::string prologue = "Prologue. ", other_prologue = "prologue. ";

void write_play(const std::filesystem::path& file, const std::string& first) {
  std::string text = first;
  for (int i = 0; i < 100; ++i) text += "All the world is a stage, number " + std::to_string(i);
  write_text(file, text);
}

/// Trains a small network that reads the text on its first stage, with a checkpoint every second
/// step. Once there is one the text is made another one, and the stage is killed.
program_outcome lose_text(const scratch_folder& folder, const std::function<void()>& change,
                          bool resumes = false) {
  const auto run =
      words{"--data",           "text:" + (folder / "text.txt").string(),
            "--checkpoint-dir", (folder / "kept").string(),
            "--json",           (folder / "steps").string()} +
      split_words(
          "--batch-size 4 --context 16 --no-eval --stages 2 --width 32 --heads 2 --layers 2 "
          "--data-node stage-0 --on-fault recover --checkpoint-every 2 --checkpoint-keep 50 "
          "--steps 100000") +
      (resumes ? words{"--resume", "auto"} : words());
  if (resumes)
    return run_other(TROUPE_TRANSFORMER, run,
                     at_line("samples/s", [](pid_t program) { ::kill(program, SIGINT); }));
  // It is called by the saboteur's thread, which makes no assertions.
  const auto before = [&] {
    static_cast<void>(wait_until_there(folder / "kept" / "step-000002"));
    change();
  };
  saboteur watch(folder / "steps", {{2, {.stage = "stage-0", .before = before}}});
  return run_other(TROUPE_TRANSFORMER, run, std::ref(watch));
}

/// Two classes of twelve images, of which one cannot be read.
void write_images(const std::filesystem::path& folder) {
  troupe::tests::write_grey_images(folder, 12);
  write_text(folder / "train/a/7.png", "no image");
}

/// As the end of a run tells it.
std::string skipped_in(const std::string& log) {
  std::smatch found;
  const std::regex told("[0-9]+ unreadable samples were skipped");
  return std::regex_search(log, found, told) ? found[0].str() : "";
}

}  // namespace

TEST_CASE("A run that loses the data with a stage goes on to the bits of a calm run", "[untimed]") {
  for (const std::string link : {"shm", "tcp"}) {
    INFO(link);
    const auto outcome =
        check_run(training({"--stages", "2", "--link", link, "--data-node", "stage-0"}),
                  {{3, {.stage = "stage-0"}}, {6, {.stage = "stage-1"}}, {9, {.stage = "stage-0"}}},
                  sequel::replayed);
    CHECK_THAT(outcome.err, ContainsSubstring("stage-0.2 reads the data from here on") &&
                                ContainsSubstring("stage-0.3 reads the data from here on"));
    CHECK(count_of(outcome.err, " reads the data from here on") == 2);
  }
}

TEST_CASE("Both ends of a pipeline are fed again when a stage between them is lost with the data",
          "[untimed]") {
  for (const std::string schedule : {"1f1b", "zb-v"})
    check_run(training({"--stages", "3", "--schedule", schedule, "--data-node", "stage-1"}, 10, 1),
              {{2, {.stage = "stage-1"}}, {5, {.stage = "stage-1", .signal = SIGSTOP}}},
              sequel::replayed);
}

TEST_CASE("The data are lost in an evaluation, which goes on where it was", "[untimed]") {
  check_evaluation(evaluating({"--stages", "2", "--data-node", "stage-0"}), {.stage = "stage-0"});
  check_evaluation(evaluating({"--stages", "3", "--data-node", "stage-1"}), {.stage = "stage-1"});
}

TEST_CASE("The data are lost again while they are fed again, or another stage is") {
  const auto again =
      check_run(training({"--stages", "2", "--data-node", "stage-0"}),
                {{5, {.stage = "stage-0", .with = {"stage-0.2"}}}}, sequel::replayed);
  CHECK_THAT(again.err, ContainsSubstring("stage-0.3 reads the data from here on"));
  const auto both = check_run(training({"--stages", "4", "--data-node", "stage-0"}),
                              {{5, {.stage = "stage-0", .with = {"stage-2"}}}}, sequel::replayed);
  CHECK_THAT(both.err, ContainsSubstring("stage-0.2 reads the data from here on"));
}

TEST_CASE("The data of all replicas are lost with a stage of one, and read by an understudy",
          "[untimed]") {
  const auto outcome =
      check_run(in_microbatches(4, training({"--stages", "2", "--replicas", "2", "--data-node",
                                             "stage-0", "--understudies", "1"})),
                {{3, {.stage = "stage-0 of replica 0"}}, {7, {.stage = "stage-1 of replica 1"}}},
                sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("understudy-1 reads the data from here on"));
}

TEST_CASE("Neighbours that are lost with the data are replayed where the trainer keeps versions") {
  const auto outcome =
      check_run(training({"--stages", "2", "--data-node", "stage-0"}),
                {{5, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::replayed);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-0.2 reads the data from here on"));
}

TEST_CASE("Where all stages go back, the data are opened again where they were lost") {
  // Over tcp the trainer keeps no versions, so neighbours that are lost together have none left.
  const auto lost =
      check_run(training({"--stages", "2", "--data-node", "stage-0", "--link", "tcp"}),
                {{5, {.stage = "stage-0", .with = {"stage-1"}}}}, sequel::returned);
  CHECK_THAT(lost.err, ContainsSubstring("stage-0.2 reads the data from here on"));
  const auto left =
      check_run(training({"--stages", "3", "--data-node", "stage-0", "--link", "tcp"}),
                {{5, {.stage = "stage-1", .with = {"stage-2"}}}}, sequel::returned);
  CHECK_THAT(left.err, !ContainsSubstring(" reads the data from here on"));
}

TEST_CASE("What cannot be read is left out by who reads the data next, and is counted once") {
  const scratch_folder folder;
  write_images(folder / "images");
  const auto run =
      words{"--data", "folder:" + (folder / "images").string()} +
      split_words(
          "--model small --image-size 48 --batch-size 8 --micro-batches 4 --steps 30 --no-eval "
          "--stages 2 --data-node stage-0 --on-fault recover");
  const auto saving = [&](const std::string& name) {
    return run + words{"--save", folder / name, "--json", folder / (name + ".json")};
  };
  const auto calm = run_other(TROUPE_PROGRAM, saving("calm"));
  REQUIRE(calm.code == 0);
  saboteur watch(folder / "stormy.json", {{4, {.stage = "stage-0"}}});
  const auto stormy = run_other(TROUPE_PROGRAM, saving("stormy"), std::ref(watch));
  CHECK(stormy.code == 0);
  CHECK(watch.done() == 1);
  check_sequel(stormy.err, 1, sequel::replayed);
  CHECK_THAT(stormy.err, ContainsSubstring("stage-0.2 reads the data from here on"));
  CHECK(losses_in(folder / "stormy.json") == losses_in(folder / "calm.json"));
  troupe::tests::check_same_weights(folder / "calm", folder / "stormy");
  CHECK_FALSE(skipped_in(calm.err).empty());
  CHECK(skipped_in(stormy.err) == skipped_in(calm.err));
}

TEST_CASE("Ctrl-C while lost data are opened again stops the run once it goes on, and saves") {
  const scratch_folder folder;
  const auto run =
      training({"--stages", "2", "--data-node", "stage-0", "--link", "tcp"}, 4000) + recovering +
      words{"--json", (folder / "steps").string(), "--save", (folder / "weights").string()};
  saboteur watch(folder / "steps", {{3, {.stage = "stage-0"}}});
  const auto outcome = run_other(TROUPE_PROGRAM, run, [&](pid_t program, std::string_view line) {
    watch(program, line);
    if (line.find("; it is replaced") != std::string_view::npos) ::kill(program, SIGINT);
  });
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, ContainsSubstring("stopping after the steps under way") &&
                              ContainsSubstring("stage-0.2 reads the data from here on"));
  CHECK(std::filesystem::exists(folder / "weights"));
}

TEST_CASE("Data that have changed when they are opened again end the run, which can be resumed") {
  const scratch_folder folder;
  const auto file = folder / "text.txt";
  write_play(file, prologue);
  const auto changed = lose_text(folder, [&] { write_play(file, other_prologue); });
  CHECK(changed.code == 1);
  CHECK_THAT(changed.err,
             ContainsSubstring("the process that read the data was lost after step ") &&
                 ContainsSubstring("on stage-0.2: text:") &&
                 ContainsSubstring("has changed since the run began: they have as many samples, "
                                   "but not the same") &&
                 !ContainsSubstring("is replayed from step"));
  write_play(file, prologue);
  const auto resumed = lose_text(folder, {}, true);
  CHECK(resumed.code == 130);
  CHECK_THAT(resumed.err, ContainsSubstring("the run goes on from the checkpoint of step "));
}

TEST_CASE("Data that nobody can open again end the run with the reason") {
  const scratch_folder folder;
  write_play(folder / "text.txt", prologue);
  const auto outcome = lose_text(folder, [&] { std::filesystem::remove(folder / "text.txt"); });
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("and none that is left can take its place: on "
                                            "stage-0.2: ") &&
                              ContainsSubstring("text.txt"));
}
