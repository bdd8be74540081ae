// One stage or many, threads or processes, whatever the wire: the same losses and the same weights.

#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using tests::run_other;
using tests::scratch_folder;

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
};

const std::vector<std::string> sgd{"--momentum", "0.9", "--weight-decay", "0.0001", "--nesterov"};

/// Two batches of 10 and one of 4, in micro-batches of 3, 3, 2, 2 and 1, 1, 1, 1.
trained train(std::vector<std::string> arguments, const std::vector<std::string>& rule = sgd) {
  const scratch_folder folder;
  const auto weights = folder / "weights.safetensors";
  const auto steps = folder / "steps.jsonl";
  for (const auto* argument :
       {"--model", "small", "--data", "synthetic:3x48x48:10:24", "--batch-size", "10",
        "--micro-batches", "4", "--epochs", "1", "--lr", "0.05", "--seed", "7",
        "--threads-per-stage", "1", "--no-eval", "--save"})
    arguments.emplace_back(argument);
  arguments.push_back(weights);
  arguments.insert(arguments.end(), rule.begin(), rule.end());
  arguments.insert(arguments.end(), {"--json", steps});
  const auto outcome = run_other(TROUPE_SMALL, arguments);
  REQUIRE(outcome.code == 0);

  trained result;
  std::ifstream lines(steps);
  for (std::string line; std::getline(lines, line);)
    result.losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  result.weights = engine::load_safetensors(weights).value();
  return result;
}

void check_same(const trained& one, const trained& other) {
  CHECK(one.losses == other.losses);
  REQUIRE(one.weights.size() == other.weights.size());
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    INFO(one.weights[i].name);
    CHECK(one.weights[i].name == other.weights[i].name);
    CHECK(at::equal(one.weights[i].tensor, other.weights[i].tensor));
  }
}

}  // namespace

TEST_CASE("Every number of stages, schedule, wire and credits trains to the same bits",
          "[untimed]") {
  const auto alone = train({"--stages", "1", "--stages-in", "threads"});
  REQUIRE(alone.losses.size() == 3);
  REQUIRE(alone.weights.size() == 62);
  // Written by hand, for the larger batches; the smaller one has as many micro-batches.
  const scratch_folder folder;
  const std::string plan = folder / "plan.txt";
  std::ofstream(plan)
      << "schedule by-hand microbatches 4 chunks 2 v-shaped\n"
         "stage 0 cap 8: 0F0 0F1 0F2 1F0 1B0 0B0 0F3 1F1 1I1 1F2 1I2 1F3 1I3 0B1 0I2 "
         "0I3 1W1 1W2 1W3 0W2 0W3\n"
         "stage 1 cap 8: 0F0 1F0 0F1 1F1 0F2 1F2 1I0 0I0 0F3 1F3 1I1 0I1 1W0 0W0 "
         "1W1 0W1 1B2 0B2 1B3 0B3\n";
  const std::vector<std::vector<std::string>> ways{
      {"--stages", "2", "--link", "shm", "--cut", "layer2"},
      {"--stages", "3", "--link", "shm", "--schedule", "gpipe", "--cut", "relu,fc"},
      {"--stages", "4", "--link", "tcp", "--credits", "1"},
      {"--stages", "4", "--stages-in", "threads", "--schedule", "gpipe", "--credits", "2"},
      {"--stages", "2", "--link", "shm", "--schedule", "interleaved-1f1b"},
      {"--stages", "3", "--link", "tcp", "--schedule", "zb-h1", "--credits", "1"},
      {"--stages", "2", "--link", "shm", "--schedule", "zb-h2"},
      {"--stages", "2", "--link", "tcp", "--schedule", "zb-v", "--credits", "1"},
      {"--stages", "1", "--stages-in", "threads", "--schedule", "zb-v"},
      {"--schedule-file", plan, "--link", "shm"},
  };
  for (const auto& way : ways) {
    std::string words;
    for (const auto& word : way) words += word + " ";
    INFO(words);
    check_same(alone, train(way));
  }
}

TEST_CASE("In channels_last stages train to the bits of one, by the kernels and copies used there",
          "[untimed]") {
  const std::string precision = GENERATE("fp32", "bf16");
  INFO(precision);
  const auto train_by = [&](std::vector<std::string> way) {
    for (const auto& word : {std::string("--memory-format"), std::string("channels_last"),
                             std::string("--precision"), precision})
      way.push_back(word);
    return train(std::move(way));
  };
  const auto alone = train_by({"--stages", "1", "--stages-in", "threads"});
  REQUIRE(alone.losses.size() == 3);
  check_same(alone, train_by({"--stages", "2", "--link", "shm", "--schedule", "zb-h2"}));
  check_same(alone, train_by({"--stages", "3", "--link", "tcp", "--schedule", "zb-h1"}));
}

TEST_CASE("Clipping by the norm of all stages gives the same bits in one process and in three",
          "[untimed]") {
  const std::vector<std::string> rule{
      "--optimizer",   "adamw",  "--clip-norm", "0.5", "--groups", "*.bias|*bn* weight_decay=0",
      "--lr-schedule", "cosine", "--lr-warmup", "1"};
  const auto alone = train({"--stages", "1", "--stages-in", "threads"}, rule);
  REQUIRE(alone.losses.size() == 3);
  check_same(alone, train({"--stages", "3", "--link", "shm", "--cut", "layer1,layer2"}, rule));
}

TEST_CASE("Training goes on from saved weights and state as if it had not stopped", "[untimed]") {
  const auto rule =
      GENERATE(std::vector<std::string>{"--momentum", "0"},  // no state to save
               std::vector<std::string>{"--momentum", "0.9", "--loss-scale", "dynamic",
                                        "--loss-scale-interval", "1", "--save-state"},
               std::vector<std::string>{"--optimizer", "adamw", "--save-state"});
  const scratch_folder folder;
  const std::vector<std::string> common{
      "--model",      "small",       "--data",   "synthetic:3x32x32:10:8",
      "--batch-size", "8",           "--stages", "2",
      "--no-eval",    "--no-shuffle"};
  const auto run = [&](const std::string& steps, const std::string& init, const std::string& save) {
    auto arguments = common;
    arguments.insert(arguments.end(), rule.begin(), rule.end());
    arguments.insert(arguments.end(), {"--steps", steps, "--save", folder / save});
    if (!init.empty()) arguments.insert(arguments.end(), {"--init", folder / init});
    const auto outcome = run_other(TROUPE_SMALL, arguments);
    REQUIRE(outcome.code == 0);
    return trained{{}, engine::load_safetensors(folder / save).value()};
  };
  const auto straight = run("2", "", "straight");
  run("1", "", "half");
  check_same(straight, run("1", "half", "whole"));
  // Weights alone are in the weights' file, as PyTorch's strict load wants it.
  CHECK(straight.weights.size() == 62);
  const auto state = [&](const std::string& name) {
    auto kept = engine::load_safetensors(folder / (name + ".state.safetensors"));
    return kept ? std::move(*kept) : std::vector<engine::named_tensor>();
  };
  const bool has_state = rule.back() == "--save-state";
  CHECK(std::filesystem::exists(folder / "half.state.safetensors") == has_state);
  check_same({{}, state("straight")}, {{}, state("whole")});
  if (!has_state) return;
  // Runs before had both in one file.
  auto both = engine::load_safetensors(folder / "half").value();
  for (const auto& each : state("half"))
    if (each.name != "optimizer.weights_digest") both.push_back(each);
  REQUIRE(engine::save_safetensors(folder / "combined", both));
  check_same(straight, run("1", "combined", "again"));
}
