// Sums of gradients: the bits of ATen's additions, with fewer copies.

#include "engine/autograd/gradient_addition.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/util/BFloat16.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "engine/autograd/contexts.hpp"

namespace {

using namespace troupe::engine;

class counted_bytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*at*/, std::int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    if (bytes > 0) sum_ += bytes;
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  [[nodiscard]] std::int64_t sum() const { return sum_; }

 private:
  std::int64_t sum_ = 0;
};

/// Of tensors that this thread makes in `body`, freed or not.
template <class Body>
std::int64_t bytes_made_in(const Body& body) {
  const auto counted = std::make_shared<counted_bytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  body();
  return counted->sum();
}

/// Zeros of either sign are told apart.
bool same_numbers(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

}  // namespace

TEST_CASE("A gradient in bf16 is added to a sum in f32 with ATen's bits, and no copy of it") {
  const at::NoGradGuard no_grad;
  const auto before = at::get_num_threads();
  const auto layout = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const std::vector<std::int64_t> shape{70, 33, 5, 7};
  auto start = at::randn(shape).contiguous(layout);
  auto gradient = at::randn(shape).to(at::kBFloat16).contiguous(layout);
  start.mutable_data_ptr<float>()[0] = -0.0F;
  auto* const numbers = gradient.mutable_data_ptr<c10::BFloat16>();
  numbers[0] = -0.0F;
  numbers[1] = std::numeric_limits<float>::infinity();
  numbers[2] = std::numeric_limits<float>::min() / 4;  // no normal number
  const auto expected = start.add(gradient);
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    auto sum = start.clone();
    CHECK(bytes_made_in([&] { add_in_place(sum, gradient); }) == 0);
    CHECK(same_numbers(sum, expected));
  }
  at::set_num_threads(before);
  CHECK(bytes_made_in([&] { static_cast<void>(start.clone()); }) > 0);
}

TEST_CASE("What lies otherwise than its sum, or is of another type, is added all the same") {
  const at::NoGradGuard no_grad;
  const auto start = at::randn({6, 5, 4, 3});
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto gradient =
        at::randn({6, 5, 4, 3}).to(type).contiguous(at::MemoryFormat::ChannelsLast);
    auto sum = start.clone();
    add_in_place(sum, gradient);
    CHECK(same_numbers(sum, start.add(gradient).contiguous()));
  }
}

TEST_CASE("A lazy negative is added with its sign, and added to") {
  const at::NoGradGuard no_grad;
  const auto start = at::randn({70, 33});
  const auto gradient = at::randn({70, 33}).to(at::kBFloat16);
  const auto expected = start.add(gradient);
  const auto lazy_gradient = at::_neg_view(gradient.neg());
  REQUIRE(lazy_gradient.is_neg());
  for (const auto& each : {gradient, lazy_gradient}) {
    auto sum = start.clone();
    add_in_place(sum, each);
    CHECK(same_numbers(sum, expected));
    auto lazy_sum = at::_neg_view(start.neg());
    add_in_place(lazy_sum, each);
    CHECK(same_numbers(lazy_sum.resolve_neg(), expected));
  }
}

TEST_CASE("A gradient that is given away becomes the sum, unless somebody else has it") {
  const at::NoGradGuard no_grad;
  const auto more = at::full({4}, 1.0);
  const auto expected = at::full({4}, 3.0);
  gradient_sum sums(1);
  auto given = at::full({4}, 2.0);
  const void* const place = given.const_data_ptr();
  sums.add(0, std::move(given));
  sums.add(0, more);
  const auto found = *sums.take(0);
  CHECK(found.const_data_ptr() == place);
  CHECK(at::equal(found, expected));

  const auto kept = at::full({4}, 2.0);
  for (auto shared : {kept, kept.view({2, 2}).view({4})}) {  // the tensor itself, and its memory
    sums.add(0, std::move(shared));
    sums.add(0, more);
    CHECK(at::equal(*sums.take(0), expected));
    CHECK(at::equal(kept, at::full({4}, 2.0)));
  }
}
