// The data on a stage's node: the same bits, and no image passes through the trainer.

#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::run_other;
using tests::run_program;
using tests::scratch_folder;

// Images of one pass over the data, and of the two evaluations.
constexpr std::uint64_t image_bytes = std::uint64_t{3} * 64 * 64 * 4;
constexpr std::uint64_t passed_bytes = (48 + 2 * 4) * image_bytes;

struct fed_run {
  std::string numbers;  // losses, accuracies
  std::vector<engine::named_tensor> weights;
  std::uint64_t trainer_bytes = 0;  // sent and received, those of the weights left out
};

/// The numbers of each step and each evaluation, without times.
std::string numbers_in(const std::filesystem::path& lines) {
  std::ifstream in(lines);
  std::string all;
  const std::regex number("\"(loss|accuracy|eval_loss|samples)\":[^,}]*");
  for (std::string line; std::getline(in, line);)
    for (std::sregex_iterator each(line.begin(), line.end(), number), end; each != end; ++each)
      all += each->str() + "\n";
  return all;
}

fed_run run_fed(const std::vector<std::string>& way) {
  const scratch_folder folder;
  const auto weights = folder / "weights.safetensors";
  const auto steps = folder / "steps.jsonl";
  std::vector<std::string> arguments{"--model",
                                     "small",
                                     "--data",
                                     "synthetic:3x64x64:10:48",
                                     "--batch-size",
                                     "8",
                                     "--lr",
                                     "0.05",
                                     "--seed",
                                     "7",
                                     "--save",
                                     weights,
                                     "--epochs",
                                     "1",
                                     "--json",
                                     steps,
                                     "--eval-every",
                                     "3",
                                     "--cut",
                                     "layer2",
                                     "--verbose",
                                     "--threads-per-stage",
                                     "1"};
  arguments.insert(arguments.end(), way.begin(), way.end());
  const auto outcome = run_other(TROUPE_SMALL, arguments);
  REQUIRE(outcome.code == 0);
  fed_run result{numbers_in(steps), {}, 0};
  std::smatch found;
  const std::regex told("the trainer has sent ([0-9]+) bytes and received ([0-9]+)");
  REQUIRE(std::regex_search(outcome.err, found, told));
  result.weights = engine::load_safetensors(weights).value();
  std::uint64_t of_weights = 0;
  for (const auto& each : result.weights) of_weights += each.tensor.nbytes();
  result.trainer_bytes = std::stoull(found[1]) + std::stoull(found[2]) - of_weights;
  return result;
}

void check_same(const fed_run& one, const fed_run& other) {
  CHECK(one.numbers == other.numbers);
  REQUIRE(one.weights.size() == other.weights.size());
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    INFO(one.weights[i].name);
    CHECK(at::equal(one.weights[i].tensor, other.weights[i].tensor));
  }
}

}  // namespace

TEST_CASE("Data on any stage's node train to the same bits, and no image passes the trainer",
          "[untimed]") {
  const auto here = run_fed({"--link", "tcp"});
  REQUIRE(here.weights.size() == 62);
  REQUIRE(here.numbers.find("accuracy") != std::string::npos);
  CHECK(here.trainer_bytes > passed_bytes);
  const std::vector<std::vector<std::string>> ways{
      {"--data-node", "stage-0", "--link", "tcp"},
      {"--data-node", "stage-1", "--link", "shm"},
      {"--data-node", "stage-0", "--stages-in", "threads"},
  };
  for (const auto& way : ways) {
    INFO(way.at(1) << " " << way.at(3));
    const auto there = run_fed(way);
    check_same(here, there);
    CHECK(there.trainer_bytes < passed_bytes / 10);
  }
}

TEST_CASE("A run with its data on a node is verified, and profiled, with samples from there",
          "[untimed]") {
  const std::vector<std::string> run{
      "--model",     "resnet18", "--data",       "synthetic:3x32x32:10:16",
      "--steps",     "2",        "--batch-size", "8",
      "--no-eval",   "--verify", "--partition",  "auto",
      "--data-node", "stage-0"};
  const auto outcome = run_program(run);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out + outcome.err, ContainsSubstring("verify"));
}

TEST_CASE("Data that are not on their node are said by node and path before the first step",
          "[untimed]") {
  const scratch_folder folder;
  const auto steps = folder / "steps";
  const auto file = folder / "run.toml";
  std::ofstream(file) << "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM
                         "\"\n[[node]]\nname = \"alpha\"\n[[node]]\nname = \"beta\"\n"
                         "[pipeline]\nstages = 2\n[model]\nname = \"resnet18\"\n"
                         "[data]\nsource = \"folder:/nowhere/at/all\"\nnode = \"beta\"\n"
                         "[observe]\njson = \""
                      << steps.string() << "\"\n";
  const auto outcome = run_other(TROUPE_COMMAND, {"launch", file});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(), ContainsSubstring("data on node beta: "));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("/nowhere/at/all"));
  std::error_code none;
  const bool has_stepped = std::filesystem::file_size(steps, none) > 0 && !none;
  CHECK_FALSE(has_stepped);
  const auto unknown = run_other(TROUPE_COMMAND, {"launch", file, "--", "--data-node", "gamma"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.last_line(), ContainsSubstring("\"gamma\""));
  CHECK_THAT(unknown.last_line(), ContainsSubstring("alpha"));
}

TEST_CASE("troupe check checks all but what follows from data that only a node has", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "run.toml";
  const auto check = [&](const std::string& model, const std::string& pipeline) {
    std::ofstream(file) << "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM
                           "\"\n[[node]]\nname = \"alpha\"\n[[node]]\nname = \"beta\"\n"
                           "[pipeline]\nstages = 2\nthreads_per_stage = 1\n"
                        << pipeline << "[model]\nname = \"resnet18\"\n"
                        << model
                        << "[data]\nsource = \"folder:/nowhere/at/all\"\nnode = \"beta\"\n";
    return run_other(TROUPE_COMMAND, {"check", file});
  };
  const auto bare = check("", "");
  CHECK(bare.code == 0);
  CHECK_THAT(bare.out, ContainsSubstring("the data are not on this machine (") &&
                           ContainsSubstring("/nowhere/at/all is not a folder") &&
                           ContainsSubstring("node beta opens them when the run starts") &&
                           ContainsSubstring("alpha") && ContainsSubstring("unknown") &&
                           ContainsSubstring("with their number of classes in the file"));
  const auto counted = check("classes = 10\n", "");
  CHECK(counted.code == 0);
  CHECK_THAT(counted.out, ContainsSubstring(", where the model is cut\nwith cuts in the file"));
  const auto cut = check("classes = 10\n", "cut = [\"layer3\"]\n");
  CHECK(cut.code == 0);
  CHECK_THAT(cut.out, ContainsSubstring("(") && ContainsSubstring(" layers)") &&
                          ContainsSubstring("a checkpoint to go on from\n"));
  const auto wrong = [&](const std::string& model, const std::string& pipeline,
                         const std::string& what) {
    const auto refused = check(model, pipeline);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.last_line(), ContainsSubstring(what));
  };
  wrong("classes = 10\n", "cut = [\"layer9\"]\n", "layer9");
  wrong("classes = 10\n", "recompute = [\"layer9\"]\n", "layer9");
  wrong("classes = 10\ninit = \"/nowhere/weights.safetensors\"\n", "",
        "/nowhere/weights.safetensors");
  wrong("", "schedule = \"1f1c\"\n", "1f1c");
}
