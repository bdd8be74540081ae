#include "engine/autograd/gradient_addition.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <cstdint>

#include "messages/base/simd.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t least_share = 1 << 15;  // numbers of a thread

bool lies_alike(const at::Tensor& sum, const at::Tensor& gradient) {
  return sum.is_cpu() && gradient.is_cpu() && sum.layout() == at::kStrided &&
         gradient.layout() == at::kStrided && !sum.is_neg() && !gradient.is_neg() &&
         sum.sizes() == gradient.sizes() && sum.strides() == gradient.strides() &&
         sum.is_non_overlapping_and_dense();
}

void add_widened(float* sum, const c10::BFloat16* gradient, std::int64_t count) {
  at::parallel_for(0, count, least_share, [=](std::int64_t begin, std::int64_t end) {
    run_at(best_simd(), [=] {
      TROUPE_EACH_ALONE
      for (std::int64_t i = begin; i < end; ++i) sum[i] += static_cast<float>(gradient[i]);
    });
  });
}

}  // namespace

void add_in_place(at::Tensor& sum, const at::Tensor& gradient) {
  const bool widens = sum.scalar_type() == at::kFloat && gradient.scalar_type() == at::kBFloat16;
  if (!widens || !lies_alike(sum, gradient)) return static_cast<void>(sum.add_(gradient));
  add_widened(sum.mutable_data_ptr<float>(), gradient.const_data_ptr<c10::BFloat16>(), sum.numel());
}

}  // namespace troupe::engine
