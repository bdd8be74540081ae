// What a run begins from: --init, --init-skip, and the state beside the weights.

#include <ATen/ops/equal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

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
