// What a run begins from: --init, --init-skip, and the state beside the weights.

#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::scratch_folder;
using tests::words;
using weights = std::map<std::string, at::Tensor>;

tests::program_outcome train_a_step(const words& more) {
  return tests::run_other(
      TROUPE_SMALL,
      tests::with(tests::split_words("--model small --data synthetic:3x32x32:10:8 --batch-size 8 "
                                     "--steps 1 --no-eval --cut layer2"),
                  more));
}

weights read(const std::filesystem::path& file) {
  auto tensors = engine::load_safetensors(file);
  REQUIRE(tensors);
  weights made;
  for (auto& [name, tensor] : *tensors) made.emplace(std::move(name), std::move(tensor));
  return made;
}

weights weights_of(const scratch_folder& folder, words more) {
  more.insert(more.end(), {"--save", folder / "made"});
  const auto outcome = train_a_step(more);
  REQUIRE(outcome.code == 0);
  return read(folder / "made");
}

/// Trains a small decoder whose ends are in two processes, in a way that leaves its weights.
tests::program_outcome train_text(const scratch_folder& folder, const words& more) {
  std::ofstream(folder / "text") << std::string(200, 'a') << std::string(200, 'b');
  const words run = tests::with(
      {"--data", "text:" + (folder / "text").string()},
      tests::split_words("--layers 2 --width 16 --heads 2 --context 8 --batch-size 4 --steps 1 "
                         "--stages 2 --no-eval --sample-bytes 0 --lr 1e-60"));
  return tests::run_other(TROUPE_TRANSFORMER, tests::with(run, more));
}

bool is_fc(const std::string& name) {
  return name.starts_with("fc.");
}

}  // namespace

TEST_CASE("A fine-tune takes over all but the layer whose shape is another", "[untimed]") {
  const scratch_folder folder;
  const std::string big = folder / "big.safetensors";
  REQUIRE(train_a_step({"--classes", "20", "--seed", "5", "--save", big}).code == 0);
  const auto refused = train_a_step({"--init", big});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(), ContainsSubstring(big + ": weight 'fc.weight' has shape") &&
                                      ContainsSubstring("--init-skip \"fc.*\""));

  // With a learning rate that vanishes in fp32 a run ends with what it began with.
  const words still{"--lr", "1e-60", "--momentum", "0"};
  auto tuned = still;
  tuned.insert(tuned.end(), {"--init", big, "--init-skip", "fc.*"});
  const auto from_seed = weights_of(folder, still);
  const auto in_processes = weights_of(folder, tuned);
  tuned.insert(tuned.end(), {"--stages-in", "threads"});
  const auto in_threads = weights_of(folder, tuned);
  const auto given = read(big);
  REQUIRE(in_processes.size() == 62);
  for (const auto& [name, tensor] : in_processes) {
    INFO(name);
    CHECK(at::equal(tensor, in_threads.at(name)));
    if (name.find("running_") != name.npos || name.find("num_batches") != name.npos) continue;
    CHECK(at::equal(tensor, (is_fc(name) ? from_seed : given).at(name)));
  }
  CHECK_FALSE(at::equal(from_seed.at("conv1.weight"), given.at("conv1.weight")));
}

TEST_CASE("What is skipped begins without an optimizer's state", "[untimed]") {
  const scratch_folder folder;
  const std::string file = folder / "kept.safetensors";
  const words adamw{"--optimizer", "adamw", "--save-state"};
  auto first = adamw, next = adamw;
  first.insert(first.end(), {"--save", file});
  REQUIRE(train_a_step(first).code == 0);
  CHECK(std::filesystem::exists(folder / "kept.state.safetensors"));
  next.insert(next.end(), {"--init", file, "--init-skip", "fc.*"});
  weights_of(folder, next);
  for (const auto& [name, tensor] : read(folder / "made.state.safetensors")) {
    if (!name.starts_with("optimizer.step.")) continue;
    INFO(name);
    CHECK(tensor.item<double>() == (name.find(".fc.") == name.npos ? 2 : 1));
  }
}

TEST_CASE("A state of weights that were replaced since is passed over with a warning",
          "[untimed]") {
  const scratch_folder folder;
  const std::string file = folder / "w";
  REQUIRE(train_a_step({"--save", file, "--save-state"}).code == 0);
  REQUIRE(train_a_step({"--save", file, "--seed", "2"}).code == 0);
  const auto next = train_a_step({"--init", file});
  CHECK(next.code == 0);
  CHECK_THAT(next.err, ContainsSubstring(file +
                                         ".state.safetensors is the optimizer's state of "
                                         "other weights than " +
                                         file));
  const auto mistaken = train_a_step({"--init", file + ".state.safetensors"});
  CHECK(mistaken.code == 2);
  CHECK_THAT(mistaken.last_line(), ContainsSubstring("holds no weights, but an optimizer's state"));
}

TEST_CASE("Weights that differ are not loaded into the two ends of a tie", "[untimed]") {
  const scratch_folder folder;
  const std::string untied = folder / "untied", made = folder / "made";
  REQUIRE(train_text(folder, {"--untied", "--save", untied}).code == 0);
  const auto refused = train_text(folder, {"--init", untied, "--save", made});
  CHECK(refused.code == 2);
  CHECK_THAT(
      refused.last_line(),
      ContainsSubstring(untied + ": 'embed.tokens' and 'head.weight' differ, but are tied") &&
          ContainsSubstring("a file that has one of the two"));
  CHECK_FALSE(std::filesystem::exists(made));

  const auto given = read(untied);
  for (const std::string kept : {"embed.tokens", "head.weight"}) {
    INFO("of both only " << kept);
    std::vector<engine::named_tensor> rest;
    for (const auto& [name, tensor] : given)
      if (name == kept || (name != "embed.tokens" && name != "head.weight"))
        rest.push_back({name, tensor});
    REQUIRE(engine::save_safetensors(folder / "rest", rest));
    for (const words& way : {words{"--verify"}, words{"--stages-in", "threads"}}) {
      const words halved{"--init", folder / "rest", "--save", made};
      REQUIRE(train_text(folder, tests::with(halved, way)).code == 0);
      const auto both = read(made);
      REQUIRE(both.size() == given.size());
      for (const auto& [name, tensor] : both) {
        INFO(name);
        const bool is_end = name == "embed.tokens" || name == "head.weight";
        CHECK(at::equal(tensor, given.at(is_end ? kept : name)));
      }
    }
  }
  CHECK(train_text(folder, {"--init", made}).code == 0);
}
