#pragma once

#include <ATen/ops/empty.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "optimizers/algorithms.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::testing {

/// Knuth's MMIX generator: the top 24 bits as a number from -1 to below 1, exact in f32. As class
/// Numbers of tests/parity/make_optimizer_fixture.py.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : state_(seed) {}

  double draw() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 40U) / 8388608.0 - 1;
  }

  /// With gaps a quarter of the elements is 0.
  at::Tensor tensor(at::IntArrayRef shape, at::ScalarType type, bool gaps = false) {
    const at::Tensor made = at::empty(shape, at::kDouble);
    for (std::int64_t i = 0; i < made.numel(); ++i) {
      const double value = draw();
      made.mutable_data_ptr<double>()[i] = gaps && value < -0.5 ? 0.0 : value;
    }
    return made.to(type);
  }

 private:
  std::uint64_t state_;
};

inline bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  if (left.defined() != right.defined()) return false;
  if (!left.defined()) return true;
  const at::Tensor a = left.contiguous(), b = right.contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

inline void require_same(const optimizers::state& left, const optimizers::state& right) {
  REQUIRE(left.size() == right.size());
  for (const auto& [slot, tensors] : left) {
    CAPTURE(slot);
    REQUIRE(right.contains(slot));
    REQUIRE(tensors.size() == right.at(slot).size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      REQUIRE(same_bits(tensors[i], right.at(slot)[i]));
  }
}

struct optimizer_case {
  std::string name;
  optimizers::options chosen;
};

/// Each built-in optimizer, once plain and once with every option that adds a slot or a branch.
inline std::vector<optimizer_case> optimizer_cases() {
  return {{"sgd", {}},
          {"sgd", {{"momentum", 0.9}, {"nesterov", 1}, {"weight_decay", 0.1}}},
          {"qhm", {{"weight_decay", 0.1}}},
          {"qhm", {{"weight_decay", 0.1}, {"weight_decay_type", 1}}},
          {"adam", {{"weight_decay", 0.1}}},
          {"adam", {{"amsgrad", 1}, {"maximize", 1}}},
          {"adamw", {}},
          {"adamw", {{"amsgrad", 1}}},
          {"adagrad", {{"initial_accumulator_value", 0.5}, {"lr_decay", 0.1}}},
          {"adadelta", {{"weight_decay", 0.1}}},
          {"rmsprop", {}},
          {"rmsprop", {{"momentum", 0.9}, {"centered", 1}, {"eps", 1e-3}}},
          {"rprop", {}},
          {"adamax", {}},
          {"radam", {{"decoupled_weight_decay", 1}, {"weight_decay", 0.1}}},
          {"radam", {{"beta2", 0.9}}},
          {"nadam", {}},
          {"lion", {{"weight_decay", 0.1}}},
          {"lamb", {{"weight_decay", 0.1}}},
          {"muon", {}},
          {"muon", {{"orthogonal", 0}}}};
}

inline optimizers::optimizer find(const std::string& name, simd level = best_simd()) {
  return optimizers::built_in_at(level).find(name).value();
}

}  // namespace troupe::testing
