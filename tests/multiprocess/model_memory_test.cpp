// No process of a run holds more of a model than its slices and one layer: peaks of memory of the
// trainer and of each stage process, against a run of a model of nothing.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "engine/state/tensor_reader.hpp"
#include "tests/memory_groups.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::memory_group;
using tests::memory_groups;
using tests::scratch_folder;
using tests::words;
using tests::operator+;

constexpr double mib = 1 << 20;

/// The most memory that a process ever had, in bytes; 0 once it has gone.
double peak_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

/// "stage-1" of a stage process; empty: of another.
std::string stage_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/cmdline");
  bool is_next = false;
  for (std::string word; std::getline(file, word, '\0');) {
    if (is_next) return word;
    is_next = word == "--node-name";
  }
  return "";
}

struct peaks {
  double trainer = 0;
  std::map<std::string, double> of_stage;  // by its name
  double largest_stage = 0;
  std::size_t stages = 0;
};

/// A decoder over stages; whatever it does is over before its last line.
struct decoder_run {
  words model;
  std::filesystem::path text;
  words shape = {"--context", "16", "--heads", "1", "--batch-size", "2", "--micro-batches", "2"};
  std::size_t stages = 4;
  std::size_t steps = 1;

  [[nodiscard]] words flags() const {
    return words{"--data",  "text:" + text.string(), "--stages", std::to_string(stages),
                 "--steps", std::to_string(steps)} +
           shape + model;
  }

  peaks operator()(const words& more) const {
    std::map<pid_t, double> of_stages;
    peaks seen;
    const auto note = [&](pid_t program, std::string_view) {
      seen.trainer = std::max(seen.trainer, peak_of(program));
      for (const auto child : tests::children_of(program)) {
        const auto name = stage_of(child);
        if (name.empty()) continue;  // it is about to become one, or is none
        const auto place = of_stages.try_emplace(child, 0).first;
        place->second = std::max(place->second, peak_of(child));
        seen.of_stage[name] = std::max(seen.of_stage[name], place->second);
      }
    };
    const auto outcome = tests::run_other(
        TROUPE_TRANSFORMER, flags() + words{"--sample-bytes", "2", "--verbose"} + more, note);
    REQUIRE(outcome.code == 0);
    for (const auto& [child, peak] : of_stages)
      seen.largest_stage = std::max(seen.largest_stage, peak);
    seen.stages = of_stages.size();
    CHECK(seen.stages == stages);
    return seen;
  }
};

/// The column `memory` of --check, in bytes, by process.
std::map<std::string, double> predicted_by_check(const words& flags) {
  const auto outcome = tests::run_other(TROUPE_TRANSFORMER, words{"--check"} + flags);
  REQUIRE(outcome.code == 0);
  std::map<std::string, double> all;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("memory:")) break;
    const auto end = line.rfind(" MiB");
    if (end == std::string::npos) continue;
    const auto begin = line.rfind(' ', end - 1);
    const auto name = line.substr(0, line.find(' '));
    all[name == "trainer" ? name : "stage-" + name] =
        std::stod(line.substr(begin, end - begin)) * mib;
  }
  return all;
}

/// A tenth of it is evaluated after the step.
std::filesystem::path text_in(const scratch_folder& folder, int sentences = 60) {
  std::ofstream text(folder / "text");
  for (int i = 0; i < sentences; ++i) text << "Whatever is not its own is dropped at once. ";
  return folder / "text";
}

double bytes_in(const std::filesystem::path& file) {
  const auto reader = engine::tensor_reader::open(file).value();
  double bytes = 0;
  for (const auto& entry : reader->tensors()) bytes += static_cast<double>(entry.end - entry.begin);
  return bytes;
}

/// A launch of a decoder over nodes of which each may have so much memory.
struct confined_launch {
  std::string layers;
  std::string width;
  std::uint64_t limit;
  double weights;  ///< Bytes, at least.
};

/// The file of a launch with a stage on each node, which are `nodes` groups of memory.
std::string confined_nodes(const scratch_folder& folder, memory_groups& groups, int nodes) {
  const auto file = folder / ("nodes-" + std::to_string(nodes) + ".toml");
  std::ofstream text(file);
  text << "[cluster]\nprogram = \"" TROUPE_TRANSFORMER "\"\n";
  for (int i = 0; i < nodes; ++i) {
    const std::string name = "n" + std::to_string(nodes) + "-" + std::to_string(i);
    text << "[[node]]\nname = \"" << name << "\"\ncores = 1\nprogram = \""
         << groups.script(folder / name, TROUPE_TRANSFORMER) << "\"\n";
  }
  return file;
}

}  // namespace

TEST_CASE("A process has its own slices of the model in memory and not the whole", "[untimed]") {
  const scratch_folder folder;
  const auto text = text_in(folder);
  const std::string saved = folder / "w";
  const decoder_run empty{{"--layers", "2", "--width", "8"}, text};
  const decoder_run run{{"--layers", "4", "--width", "1024"}, text};
  const auto nothing = empty({"--verify", "--save", folder / "nothing"});
  const auto trained = run({"--save", saved});
  const auto again = run({"--init", saved});
  const double model = bytes_in(saved);
  REQUIRE(model > 190 * mib);
  // A stage has a quarter of the weights, of the sums of their gradients, of those of a micro-batch
  // and of the optimizer's momentum, and drew one layer more, which here is a quarter too. The rest
  // is what the allocator and the matrix products keep, about 90 MiB. With the whole model it would
  // have three quarters more of each.
  const double slices = 1.1 * model / 4;
  for (const auto& seen : {trained, again}) {
    CAPTURE(nothing.trainer / mib, nothing.largest_stage / mib, seen.trainer / mib,
            seen.largest_stage / mib);
    CHECK(seen.trainer < nothing.trainer + 100 * mib);
    CHECK(seen.largest_stage < nothing.largest_stage + 5 * slices + 96 * mib);
  }
}

TEST_CASE("A trainer that places stages by the nodes' memory has no layer in its own",
          "[untimed]") {
  const scratch_folder folder;
  const auto text = text_in(folder);
  const std::string nodes = folder / "nodes.toml";
  std::ofstream(nodes) << "[cluster]\n[[node]]\nname = \"one\"\ncores = 1\nmemory_mib = 8000\n"
                          "[[node]]\nname = \"two\"\ncores = 1\nmemory_mib = 8000\n";
  const auto trainer_of = [&](const words& model) {
    double peak = 0;
    const auto note = [&](pid_t program, std::string_view) {
      peak = std::max(peak, peak_of(program));
    };
    const auto outcome = tests::run_other(
        TROUPE_TRANSFORMER,
        words{"--config", nodes, "--data", "text:" + text.string(), "--stages", "2", "--steps", "1",
              "--context", "16", "--heads", "1", "--batch-size", "2", "--micro-batches", "2",
              "--sample-bytes", "2", "--verbose"} +
            model,
        note);
    REQUIRE(outcome.code == 0);
    return peak;
  };
  const double nothing = trainer_of({"--layers", "2", "--width", "8"});
  const double trainer = trainer_of({"--layers", "2", "--width", "1024"});  // 48 MiB a layer
  CAPTURE(nothing / mib, trainer / mib);
  CHECK(trainer < nothing + 30 * mib);
}

namespace {

double of_all_stages(const std::map<std::string, double>& predicted) {
  double all = 0;
  for (const auto& [name, bytes] : predicted)
    if (name != "trainer") all += bytes;
  return all;
}

}  // namespace

TEST_CASE(
    "The peak memory of each process is what the check predicts, and of four stages less than 45 % "
    "of what one takes",
    "[untimed]") {
  const scratch_folder folder;
  const auto text = text_in(folder);
  const decoder_run empty{{"--layers", "4", "--width", "8", "--optimizer", "adamw"}, text};
  const auto nothing = empty({});  // what the program itself takes in each process
  // Nearly all weights; and a third of activations of the four micro-batches in flight.
  const decoder_run heavy{{"--layers", "8", "--width", "1024", "--optimizer", "adamw"}, text};
  const decoder_run lively{{"--layers", "8", "--width", "512", "--optimizer", "adamw"},
                           text,
                           {"--context", "64", "--heads", "4", "--batch-size", "16",
                            "--micro-batches", "4", "--no-idle-cores"}};
  double largest_of_heavy = 0;
  std::map<std::string, double> predicted;
  peaks seen;
  for (const auto& run : {heavy, lively}) {
    predicted = predicted_by_check(run.flags());
    REQUIRE(predicted.size() == 5);
    seen = run({});
    if (run.model == heavy.model) largest_of_heavy = seen.largest_stage;
    REQUIRE(seen.of_stage.size() == 4);
    for (const auto& [name, bytes] : predicted) {
      const bool is_trainer = name == "trainer";
      const double own = is_trainer ? nothing.trainer : nothing.of_stage.at(name);
      const double peak = is_trainer ? seen.trainer : seen.of_stage.at(name);
      CAPTURE(name, own / mib, bytes / mib, peak / mib);
      CHECK(peak > 0.85 * (own + bytes));
      CHECK(peak < 1.15 * (own + bytes));
      CHECK((is_trainer || bytes > own / 2));  // else the program alone would be within 15%
    }
  }
  auto alone = heavy;
  alone.stages = 1;
  const auto one = alone({});
  CAPTURE(largest_of_heavy / mib, one.largest_stage / mib);
  CHECK(largest_of_heavy > 0);
  CHECK(largest_of_heavy < 0.45 * one.largest_stage);
  // With recovery a process also has two versions of its own stage and two of another one. The
  // latter are borrowed here, and take none of its memory until somebody reads them.
  auto recovering = lively;
  recovering.steps = 3;  // by then there are two
  const words recover{"--on-fault", "recover"};
  const auto with_versions = predicted_by_check(recovering.flags() + recover);
  const auto kept = recovering(recover);
  for (const auto& [name, peak] : kept.of_stage) {
    const double more = with_versions.at(name) - predicted.at(name);
    CAPTURE(name, predicted.at(name) / mib, more / mib, peak / mib, seen.of_stage.at(name) / mib);
    CHECK(more > predicted.at(name) / 2);
    CHECK(peak > seen.of_stage.at(name) + 0.35 * more);
    CHECK(peak < 1.15 * (nothing.of_stage.at(name) + with_versions.at(name)));
  }
  // The trainer maps two versions of each stage: of weights and state, without gradients.
  const double all = of_all_stages(predicted);
  const double mapped = with_versions.at("trainer") - predicted.at("trainer");
  CAPTURE(mapped / mib, all / mib, kept.trainer / mib, seen.trainer / mib);
  CHECK(mapped > all / 4);
  CHECK(kept.trainer < seen.trainer + 0.35 * mapped);
}

/// One step of a decoder of that size on two sequences.
words flags_of_decoder(const confined_launch& what, const std::filesystem::path& text) {
  return {"--layers",
          what.layers,
          "--width",
          what.width,
          "--optimizer",
          "adamw",
          "--heads",
          "1",
          "--context",
          "16",
          "--steps",
          "1",
          "--batch-size",
          "2",
          "--micro-batches",
          "2",
          "--data",
          "text:" + text.string(),
          "--no-eval",
          "--sample-bytes",
          "2"};
}

/// Trained over four nodes, saved, loaded again and verified; refused on one.
void fits_on_four_nodes_and_not_on_one(const confined_launch& what) {
  if (const auto why = memory_group::unavailable(); !why.empty()) SKIP(why);
  const scratch_folder folder;
  const auto text = text_in(folder);
  const std::string saved = folder / "w";
  memory_groups groups(what.limit);
  const auto model = flags_of_decoder(what, text);
  const auto launch = [&](const std::string& file, const char* stages, const words& more) {
    return tests::run_other(TROUPE_COMMAND,
                            words{"launch", file, "--", "--stages", stages} + model + more, {},
                            std::chrono::minutes(30));
  };
  const auto four = confined_nodes(folder, groups, 4);
  for (const auto& more :
       {words{"--save", saved, "--save-state"}, words{"--init", saved, "--verify"}}) {
    const auto outcome = launch(four, "4", more);
    REQUIRE(outcome.code == 0);
    CHECK(bytes_in(saved) > what.weights);
  }

  const auto limit = " MiB free within the limit of the control group, " +
                     std::to_string(what.limit >> 20) + " MiB; cut the model into more stages";
  // Each of two would fit, but not both.
  const auto both = launch(confined_nodes(folder, groups, 1), "2", {});
  CHECK(both.code == 2);
  CHECK_THAT(
      both.last_line(),
      ContainsSubstring("node n1-0: the weights, gradients and optimizer state of its stages "
                        "(stage-0, stage-1) take "));
  CHECK_THAT(both.last_line(), ContainsSubstring(limit));
  CHECK(groups.most() < 0.6 * static_cast<double>(what.limit));

  const auto refused = launch(confined_nodes(folder, groups, 1), "1", {});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("stage-0: its weights, gradients and optimizer state take "));
  CHECK_THAT(refused.last_line(), ContainsSubstring(limit));
  CHECK(groups.most() < 0.6 * static_cast<double>(what.limit));  // nothing of it was in memory

  const auto confined = groups.script(folder / "confined", TROUPE_COMMAND);
  std::ofstream(folder / "one.toml") << "[cluster]\nprogram = \"" TROUPE_TRANSFORMER "\"\n";
  const auto checked = tests::run_other(
      confined, words{"check", folder / "one.toml", "--", "--stages", "1"} + model);
  CHECK(checked.code == 2);
  CHECK_THAT(checked.out, ContainsSubstring("embed .. head"));
  CHECK_THAT(checked.last_line(), ContainsSubstring("stage-0 is predicted to take "));
  CHECK_THAT(checked.last_line(), ContainsSubstring(limit));
}

TEST_CASE("A node whose memory is predicted to be too little for activations is warned of",
          "[untimed]") {
  if (const auto why = memory_group::unavailable(); !why.empty()) SKIP(why);
  const scratch_folder folder;
  const auto text = text_in(folder, 400);
  memory_groups groups(std::uint64_t{600} << 20);
  const auto nodes = confined_nodes(folder, groups, 2);
  // A few MiB of weights; the logits and attention of a micro-batch of many samples take much more.
  const auto launch = [&](const char* samples) {
    return tests::run_other(
        TROUPE_COMMAND,
        words{"launch", nodes, "--", "--stages", "2"} +
            words{"--layers", "4", "--width", "256", "--heads", "4", "--context", "128", "--data",
                  "text:" + text.string(), "--steps", "1", "--no-eval", "--sample-bytes", "2",
                  "--micro-batches", "2", "--batch-size", samples},
        // How it would end is the system's decision.
        tests::at_line("warning: node n2-0: its stages",
                       [](pid_t program) { ::kill(program, SIGINT); }));
  };
  const auto small = launch("2");
  CHECK(small.code == 0);
  CHECK_THAT(small.err, !ContainsSubstring("predicted to take"));
  const auto large = launch("128");
  CHECK_THAT(large.err,
             ContainsSubstring("warning: node n2-0: its stages (stage-0) are predicted to take "));
  CHECK_THAT(large.err,
             ContainsSubstring(" MiB free within the limit of the control group, 600 MiB; "
                               "take smaller micro-batches (more of them: --micro-batches)"));
}

TEST_CASE("Stages that are threads are refused where all of them together do not fit",
          "[untimed]") {
  if (const auto why = memory_group::unavailable(); !why.empty()) SKIP(why);
  const scratch_folder folder;
  memory_groups groups(std::uint64_t{250} << 20);
  const auto refused = [&](const char* program, const words& model, const std::string& what) {
    const auto outcome =
        tests::run_other(groups.script(folder / "confined", program),
                         model + words{"--stages-in", "threads", "--no-eval", "--steps", "1"});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.last_line(),
               ContainsSubstring("--stages-in: " + what) &&
                   ContainsSubstring("), which are threads of one process, ") &&
                   ContainsSubstring(" free within the limit of the control group, 250 MiB"));
  };
  // Weights, gradients and momentum of 288 MiB, of which no stage has more than 80.
  refused(
      TROUPE_TRANSFORMER,
      {"--data", "text:" + text_in(folder).string(), "--stages", "4", "--layers", "8", "--width",
       "512", "--heads", "4", "--context", "16", "--batch-size", "2", "--micro-batches", "2"},
      "the weights, gradients and optimizer state of all stages (stage-0, stage-1, stage-2, "
      "stage-3");
  // Of 128 MiB, which alone would fit.
  refused(TROUPE_PROGRAM,
          {"--model", "resnet18", "--data", "synthetic:3x32x32:10:64", "--batch-size", "16",
           "--stages", "2"},
          "");
}

TEST_CASE("A model whose training fits in no node is trained over four and refused on one",
          "[untimed]") {
  fits_on_four_nodes_and_not_on_one({"4", "1024", std::uint64_t{720} << 20, 190 * mib});
}

TEST_CASE("6 GB of weights, gradients and Adam's state are trained on four nodes of 3 GiB each") {
  const char* const wish = std::getenv("TROUPE_LONG");
  if (wish == nullptr || std::string(wish) != "1")
    SKIP("9 GiB of memory and minutes; TROUPE_LONG=1 runs it");
  fits_on_four_nodes_and_not_on_one({"8", "2048", std::uint64_t{3} << 30, 1.5e9});
}
