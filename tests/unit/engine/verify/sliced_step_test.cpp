// A step with a slice of the model in memory at a time, against the same with all of it.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/model.hpp"
#include "engine/verify/sliced_step.hpp"
#include "engine/verify/verification.hpp"
#include "tests/parity/one_piece.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

constexpr std::uint64_t sliced_seed = 5;

/// Of slices from the last to the first, put together in the model's order.
step_result run_in_slices(const model_blueprint& of, const std::vector<layer_range>& ranges,
                          const stage_options& how, const std::vector<batch>& microbatches,
                          double loss_scale, const std::vector<weight_tie>& ties_between) {
  initial_weights weights(of, sliced_seed);
  std::size_t made = 0;
  sliced_step step(ranges.size(),
                   [&](std::size_t slice) {
                     ++made;
                     auto layers = weights.make(ranges[slice]);
                     if (layers) to_memory_format(*layers, how.channels_last);
                     return layers;
                   },
                   {how, 1, microbatches, loss_scale, ties_between});
  REQUIRE(step.forward());
  step_result whole;
  for (std::size_t slice = ranges.size(); slice-- > 0;) {
    auto part = step.backward(slice);
    REQUIRE(part);
    whole.gradients.insert(whole.gradients.begin(), part->gradients.begin(), part->gradients.end());
    whole.buffers.insert(whole.buffers.begin(), part->buffers.begin(), part->buffers.end());
  }
  for (auto& each : step.tied_gradients()) whole.gradients.push_back(std::move(each));
  whole.loss = step.loss();
  CHECK(made == 2 * ranges.size() - 1);
  return whole;
}

void check_same_bits(const step_result& one, const step_result& other) {
  const auto outcome = compare(one, other, 0);
  for (const auto& line : to_lines(outcome)) INFO(line);
  CHECK(one.gradients.size() == other.gradients.size());
  CHECK(one.loss == other.loss);
  CHECK(outcome.passed());
}

}  // namespace

TEST_CASE("A residual network's step is the same to the bit, slice by slice") {
  at::set_num_threads(1);
  const auto of = tests::small_residual_network(10);
  const double scale = GENERATE(1.0, 1024.0);
  const stage_options how{.precision = GENERATE(precision::fp32, precision::bf16),
                          .channels_last = GENERATE(false, true),
                          .seed = sliced_seed};
  std::vector<batch> microbatches;
  for (const std::int64_t n : {3, 2})
    microbatches.push_back({at::randn({n, 3, 32, 32}), at::randint(0, 10, {n}, at::kLong)});
  auto layers = make_whole(of, sliced_seed).value();
  to_memory_format(layers, how.channels_last);
  const auto whole = tests::run_in_one_piece(layers, how, 1, microbatches, scale);
  const std::size_t n = layers.size();
  for (const auto& ranges :
       {std::vector<layer_range>{{0, n}}, std::vector<layer_range>{{0, 2}, {2, 3}, {3, 7}, {7, n}}})
    check_same_bits(run_in_slices(of, ranges, how, microbatches, scale, {}), whole);
}

TEST_CASE("A decoder's step is the same to the bit, slice by slice, with a weight at both ends") {
  at::set_num_threads(1);
  const auto of = apps::gpt_blueprint(
                      256, {.layers = 2, .width = 32, .heads = 4, .context = 24, .dropout = 0.3})
                      .value();
  std::vector<batch> microbatches;
  for (const std::int64_t n : {3, 2})
    microbatches.push_back(
        {at::randint(0, 256, {n, 24}, at::kLong), at::randint(0, 256, {n, 24}, at::kLong)});
  const stage_options how{.seed = sliced_seed};
  const auto layers = make_whole(of, sliced_seed).value();
  const auto whole = tests::run_in_one_piece(layers, how, 1, microbatches);
  const std::size_t n = layers.size();
  const auto tied = ties(layers);
  REQUIRE(tied.size() == 1);
  check_same_bits(run_in_slices(of, {{0, n}}, how, microbatches, 1, {}), whole);
  check_same_bits(run_in_slices(of, {{0, 1}, {1, 4}, {4, n}}, how, microbatches, 1, tied), whole);
}
