#pragma once

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/model.hpp"
#include "engine/verify/reference.hpp"
#include "tests/small_residual_network.hpp"

// What tests of parity train: two small models, and batches for them.
namespace troupe::tests {

constexpr std::uint64_t seed = 5;

inline engine::model resnet() {
  return engine::make_whole(small_residual_network(10), seed).value();
}

/// Where sizes matter: of 11 million weights.
inline engine::model whole_resnet() {
  return apps::build_resnet("resnet18", 10, seed).value();
}

/// Its embedding is tied across the model.
inline engine::model decoder() {
  const apps::gpt_options shape{
      .layers = 2, .width = 32, .heads = 4, .context = 16, .tied = true, .dropout = 0.2};
  return engine::make_whole(apps::gpt_blueprint(64, shape).value(), seed).value();
}

/// Of so many samples each.
inline std::vector<engine::batch> images(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back({at::randn({size, 3, 32, 32}), at::randint(0, 10, {size}, at::kLong)});
  return all;
}

inline std::vector<engine::batch> sentences(std::initializer_list<std::int64_t> sizes) {
  std::vector<engine::batch> all;
  for (const auto size : sizes)
    all.push_back(
        {at::randint(0, 64, {size, 16}, at::kLong), at::randint(0, 64, {size, 16}, at::kLong)});
  return all;
}

/// To the bit, and in the host's memory. By name: stages of several chunks have the model in
/// another order.
inline void check_same(std::vector<engine::named_tensor> one,
                       std::vector<engine::named_tensor> other) {
  REQUIRE(one.size() == other.size());
  for (auto* const list : {&one, &other}) std::ranges::sort(*list, {}, &engine::named_tensor::name);
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(other[i].tensor.is_cpu());
    CHECK(at::equal(one[i].tensor, other[i].tensor));
  }
}

/// Of the tensors of these lists, the most that one is away from its counterpart, as a share of the
/// length of that.
inline double distance(const std::vector<engine::named_tensor>& found,
                       const std::vector<engine::named_tensor>& wanted) {
  REQUIRE(found.size() == wanted.size());
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].name == wanted[i].name);
    const auto length = wanted[i].tensor.to(at::kDouble).norm().item<double>();
    const auto apart = found[i].tensor.to(at::kDouble).sub(wanted[i].tensor).norm().item<double>();
    largest = std::max(largest, apart / length);
  }
  return largest;
}

/// Gradients and buffers within `relative` of each element, or a tenth of that of the largest one.
inline void check_close(const engine::step_result& found, const engine::step_result& expected,
                        double relative) {
  for (const auto& list : {std::pair(&found.gradients, &expected.gradients),
                           std::pair(&found.buffers, &expected.buffers)}) {
    REQUIRE(list.first->size() == list.second->size());
    for (std::size_t i = 0; i < list.first->size(); ++i) {
      INFO((*list.first)[i].name);
      const auto& wanted = (*list.second)[i].tensor;
      CHECK(at::allclose((*list.first)[i].tensor, wanted, relative,
                         relative / 10 * wanted.abs().max().item<double>()));
    }
  }
}

}  // namespace troupe::tests
