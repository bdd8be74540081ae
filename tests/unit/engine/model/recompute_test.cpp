// Layers whose activations are computed again: the same bits, dropout and batch norm included.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <memory>

#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "engine/verify/reference.hpp"
#include "engine/verify/verification.hpp"
#include "tests/parity/one_piece.hpp"
#include "tests/refusal.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint64_t recompute_seed = 5;

model small_resnet() {
  return make_whole(tests::small_residual_network(10), recompute_seed).value();
}

model small_decoder() {
  const apps::gpt_options shape{
      .layers = 2, .width = 32, .heads = 4, .context = 24, .dropout = 0.3};
  return make_whole(apps::gpt_blueprint(256, shape).value(), recompute_seed).value();
}

std::vector<batch> images() {
  std::vector<batch> made;
  for (const std::int64_t n : {3, 2})
    made.push_back({at::randn({n, 3, 32, 32}), at::randint(0, 10, {n}, at::kLong)});
  return made;
}

std::vector<batch> texts() {
  std::vector<batch> made;
  for (const std::int64_t n : {3, 2})
    made.push_back(
        {at::randint(0, 256, {n, 24}, at::kLong), at::randint(0, 256, {n, 24}, at::kLong)});
  return made;
}

/// A step of one stage that recomputes the layers named.
step_result run_recomputing(model layers, const std::vector<std::string>& names,
                            const std::vector<batch>& microbatches, precision type) {
  stage_options how{.precision = type, .seed = recompute_seed};
  how.recompute = recomputed_layers(layer_names(layers), names).value();
  stage_module module(std::move(layers), how);
  const step_key step{{0}, {9}};
  module.begin(step, {.number = 1});
  step_result whole;
  for (std::uint32_t i = 0; i < microbatches.size(); ++i) {
    const auto& [inputs, labels] = microbatches[i];
    whole.loss += module.forward(step, step_kind::training, {i}, inputs, labels, 5).loss;
  }
  for (std::uint32_t i = 0; i < microbatches.size(); ++i) {
    static_cast<void>(module.backward_input(step, {i}, {}));
    module.backward_weights(step, {i});
  }
  whole.gradients = name_gradients(module.parameters(), module.take_gradients());
  whole.buffers = copy_buffers(module.layers());
  module.end(step, true);
  return whole;
}

void check_same(const step_result& one, const step_result& other) {
  const auto outcome = compare(one, other, 0);
  for (const auto& line : to_lines(outcome)) {
    INFO(line);
    CHECK(line.find("FAIL") == std::string::npos);
  }
  CHECK(outcome.passed());
}

}  // namespace

TEST_CASE("Recomputed layers of a residual network give the same bits and statistics") {
  at::set_num_threads(1);
  const auto type = GENERATE(precision::fp32, precision::bf16);
  const auto microbatches = images();
  const auto plain = tests::run_in_one_piece(
      small_resnet(), {.precision = type, .seed = recompute_seed}, 1, microbatches);
  const std::vector<std::vector<std::string>> choices{{},
                                                      {"layer2"},
                                                      {"relu"},
                                                      {"conv1", "bn1", "layer1.1", "layer2.1"},
                                                      {"bn1", "relu", "maxpool"}};
  for (const auto& names : choices)
    check_same(run_recomputing(small_resnet(), names, microbatches, type), plain);
}

TEST_CASE("Recomputed layers of a decoder drop the same numbers again") {
  at::set_num_threads(1);
  const auto type = GENERATE(precision::fp32, precision::bf16);
  const auto microbatches = texts();
  const auto plain = tests::run_in_one_piece(
      small_decoder(), {.precision = type, .seed = recompute_seed}, 1, microbatches);
  const std::vector<std::vector<std::string>> choices{
      {}, {"h0"}, {"embed", "h0", "h1"}, {"h1.mlp"}};
  for (const auto& names : choices)
    check_same(run_recomputing(small_decoder(), names, microbatches, type), plain);
}

TEST_CASE(
    "Dropout draws other numbers in each step and micro-batch, and the same in each run of it") {
  at::set_num_threads(1);
  const auto layers = small_decoder();
  const auto one = texts();
  const std::vector<batch> twice{one[0], one[0]};
  const stage_options how{.seed = recompute_seed};
  const auto first = tests::run_in_one_piece(layers, how, 1, one);
  CHECK(tests::run_in_one_piece(layers, how, 1, one).loss == first.loss);
  CHECK(tests::run_in_one_piece(layers, how, 2, one).loss != first.loss);
  const auto both = tests::run_in_one_piece(layers, how, 1, twice);
  CHECK(both.loss != tests::run_in_one_piece(layers, how, 1, {one[0]}).loss);
}

TEST_CASE("A name that is no layer cannot be recomputed") {
  const auto chosen = recomputed_layers({"conv1", "layer1.0", "layer1.1"}, {"layer1"}).value();
  CHECK(chosen == std::vector<bool>{false, true, true});
  CHECK_THAT(error_of(recomputed_layers({"conv1", "layer1.0"}, {"layer"}), errc::bad_config).text,
             ContainsSubstring("'layer'") && ContainsSubstring("layer1.0"));
}
