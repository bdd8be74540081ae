#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>

#include "optimizers/sweep.hpp"
#include "optimizers/training/state_copy.hpp"

namespace troupe::optimizers {
namespace {

constexpr auto large = static_cast<std::int64_t>(least_streamed / sizeof(float));

/// Whether it is a copy to the bit that nothing written to the original changes.
bool is_own_copy(const at::Tensor& of) {
  const at::Tensor before = of.clone();
  const at::Tensor copy = copy_past_caches(of);
  of.zero_();
  return copy.sizes() == before.sizes() && copy.scalar_type() == before.scalar_type() &&
         at::equal(copy, before);
}

at::Tensor bytes(std::int64_t count) {
  return at::arange(count, at::kLong).remainder(251).to(at::kByte);
}

}  // namespace

TEST_CASE("a copy of a state has the bits of the original, whatever its size and layout") {
  CHECK(is_own_copy(at::randn({})));
  CHECK(is_own_copy(at::randn({0, 4})));
  CHECK(is_own_copy(at::randn({large - 1})));
  CHECK(is_own_copy(at::randn({large})));
  CHECK(is_own_copy(at::randn({large + 3}).narrow(0, 1, large + 1)));
  CHECK(is_own_copy(at::randn({2, large}).t()));
  CHECK(is_own_copy(at::randn({4, large}).narrow(1, 3, large / 2)));
  CHECK(is_own_copy(at::randn({large / 64, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)));
  CHECK(is_own_copy(at::randn({large}).to(at::kDouble)));
  CHECK(is_own_copy(bytes(least_streamed + 15)));
  CHECK(is_own_copy(bytes(least_streamed + 16).narrow(0, 1, least_streamed + 15)));
}

TEST_CASE("a copy of a state keeps how a tensor lies in memory") {
  const at::Tensor filters =
      at::randn({large / 64, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(copy_past_caches(filters).strides() == filters.strides());
  const at::Tensor turned = at::randn({2, large}).t();
  CHECK(copy_past_caches(turned).strides() == turned.strides());
}

}  // namespace troupe::optimizers
