// What a run begins from, where its model ties two weights.

#include "cluster/training/saving/checkpoint.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/model/transformer_layers.hpp"
#include "engine/state/model_file.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/unit/heard_stderr.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using tensors = std::map<std::string, at::Tensor>;

const std::string weight_of_one = "one.weight", weight_of_two = "two.weight";
const std::string slot = "optimizer.momentum_buffer.";

engine::model tied_model() {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", 4, 4, random));
  made.push_back(std::make_unique<engine::token_scores>("two", 4, 4, weight_of_one, random));
  return made;
}

at::Tensor some_weight() {
  return at::arange(16, at::kFloat).view({4, 4});
}

/// The whole model, both ends of its tie equal.
tensors whole() {
  return {
      {"one.bias", at::zeros({4})}, {weight_of_one, some_weight()}, {weight_of_two, some_weight()}};
}

std::filesystem::path write_weights(const tests::scratch_folder& folder, const tensors& all) {
  std::vector<engine::named_tensor> listed;
  for (const auto& [name, tensor] : all) listed.push_back({name, tensor});
  REQUIRE(engine::save_safetensors(folder / "weights.safetensors", listed));
  return folder / "weights.safetensors";
}

result<checkpoint> begun(const tests::scratch_folder& folder, const tensors& all,
                         const std::vector<std::string>& skip = {}) {
  return check_start(tied_model(), read_checkpoint(write_weights(folder, all)), skip);
}

void check_both_named(const error& why, const std::string& one, const std::string& other) {
  CHECK_THAT(why.text, ContainsSubstring("weights.safetensors: '" + one + "' and '" + other +
                                         "' differ, but ") &&
                           ContainsSubstring("a file that has one of the two"));
}

/// What the model's tied weights are once a file is loaded.
std::pair<at::Tensor, at::Tensor> loaded(const checkpoint& from) {
  const auto layers = tied_model();
  const auto own = engine::collect_weights(layers);
  REQUIRE(engine::load_weights(from.weight_files, own, from.skipped));
  tensors found;
  for (const auto& each : own) found.emplace(each.name, each.tensor.detach());
  return {found.at(weight_of_one), found.at(weight_of_two)};
}

}  // namespace

TEST_CASE("a file whose tied weights differ in a bit is refused with the names of both") {
  const tests::scratch_folder folder;
  CHECK(begun(folder, whole()));
  auto other = whole();
  other[weight_of_two] = some_weight().neg();
  check_both_named(error_of(begun(folder, other), errc::bad_data), weight_of_one, weight_of_two);
  other[weight_of_two] = some_weight();
  other[weight_of_two][0][0] = -0.0F;  // equal, but not to the bit
  check_both_named(error_of(begun(folder, other), errc::bad_data), weight_of_one, weight_of_two);
  other[weight_of_two] = some_weight().to(at::kHalf);
  check_both_named(error_of(begun(folder, other), errc::bad_data), weight_of_one, weight_of_two);
}

TEST_CASE("tied weights that do not fit the model are refused for that") {
  const tests::scratch_folder folder;
  auto wide = whole();
  wide[weight_of_one] = at::ones({8, 4});
  wide[weight_of_two] = at::zeros({8, 4});
  check_refused(begun(folder, wide), errc::bad_data, "has shape [8, 4]");
}

TEST_CASE("a tensor that no layer has is refused by its name") {
  const tests::scratch_folder folder;
  auto more = whole();
  more["one.scale"] = at::ones({4});
  check_refused(begun(folder, more), errc::bad_data,
                "weight 'one.scale' belongs to no layer of the model");
  CHECK(begun(folder, more, {"one.scale"}));
}

TEST_CASE("tied weights that differ in a file are none of a run that skips both") {
  const tests::scratch_folder folder;
  auto other = whole();
  other[weight_of_two] = some_weight().neg();
  CHECK(begun(folder, other, {"*.weight"}));
  check_refused(begun(folder, other, {"two.*"}), errc::bad_config, "skip both or none");
}

TEST_CASE("a file that has one of two tied weights has both begin with it") {
  const tests::scratch_folder folder;
  for (const auto& absent : {weight_of_one, weight_of_two}) {
    INFO("without " << absent);
    auto half = whole();
    half.erase(absent);
    const auto from = begun(folder, half);
    REQUIRE(from);
    CHECK(from->stand_ins == std::set<std::string>{absent});
    const auto [one, two] = loaded(*from);
    CHECK(at::equal(one, some_weight()));
    CHECK(at::equal(two, some_weight()));
  }
  auto none = whole();
  none.erase(weight_of_one);
  none.erase(weight_of_two);
  check_refused(begun(folder, none), errc::bad_data, "weight 'one.weight' of the model is missing");
}

TEST_CASE("the optimizer's state of two tied weights is one too") {
  const tests::scratch_folder folder;
  auto all = whole();
  all[slot + weight_of_one] = at::ones({4, 4});
  all[slot + weight_of_two] = at::ones({4, 4});
  CHECK(begun(folder, all));
  all[slot + weight_of_two] = at::zeros({4, 4});
  check_both_named(error_of(begun(folder, all), errc::bad_data), slot + weight_of_one,
                   slot + weight_of_two);
  for (const auto& absent : {weight_of_one, weight_of_two}) {
    auto half = whole();
    half[slot + (absent == weight_of_one ? weight_of_two : weight_of_one)] = at::full({4, 4}, 3.);
    half.erase(absent);
    const auto from = begun(folder, half);
    REQUIRE(from);
    CHECK(from->stand_ins == std::set{absent, slot + absent});
    const auto [file, entry] = engine::find_in(from->state_files, slot + absent);
    REQUIRE(file != nullptr);
    CHECK(at::equal(file->read(*entry).value(), at::full({4, 4}, 3.)));
    CHECK(states_of(*from, engine::parameters(tied_model())).size() == 2);
  }
}

TEST_CASE("a run's own checkpoint with tied weights that differ is warned of, and goes on") {
  const tests::scratch_folder folder;
  auto other = whole();
  other[weight_of_two] = some_weight().neg();
  write_weights(folder, other);
  checkpoint_manifest of_two_files, newer;
  for (const auto& [name, tensor] : other) newer.weights.push_back(name);
  newer.files["weights.safetensors"] = {.holds = checkpoint_manifest::contents::weights};
  for (const auto& manifest : {of_two_files, newer}) {
    const tests::heard_stderr heard;
    const auto from =
        check_start(tied_model(), read_checkpoint(whole_checkpoint{folder.path(), manifest}), {});
    REQUIRE(from);
    CHECK(at::equal(loaded(*from).second, some_weight().neg()));
    CHECK_THAT(heard.text(), ContainsSubstring("'one.weight' and 'two.weight' differ") &&
                                 ContainsSubstring("goes on as its run left it"));
  }
}
