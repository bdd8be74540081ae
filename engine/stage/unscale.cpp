#include "engine/stage/unscale.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>

#include <bit>

namespace troupe::engine {
namespace {

// Of an f32: all set where it is infinite or NaN.
constexpr std::uint32_t exponent_bits = 0x7f800000;

// Compiled to be vectorised (see CMakeLists.txt). `to` may be `from`.
bool multiply(float* to, const float* from, std::int64_t count, float factor) {
  std::uint32_t beyond = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float each = from[i] * factor;
    const auto exponent = std::bit_cast<std::uint32_t>(each) & exponent_bits;
    beyond |= exponent == exponent_bits ? 1U : 0U;
    to[i] = each;
  }
  return beyond == 0;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_neg() &&
         tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense();
}

bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

bool unscale(at::Tensor& gradient, double factor) {
  if (!is_plain(gradient)) {
    gradient = at::mul(gradient, factor);
    return at::isfinite(gradient).all().item<bool>();
  }
  auto to = is_ours_alone(gradient) ? gradient : at::empty_like(gradient);
  const bool finite = multiply(to.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(),
                               gradient.numel(), static_cast<float>(factor));
  gradient = std::move(to);
  return finite;
}

}  // namespace

void divide_there(step_gradients& gradients, double scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;  // one operator multiplies these
  for (auto& each : gradients) {
    if (!each) continue;
    if (each->layout() == at::kStrided && !each->is_neg() && is_ours_alone(*each))
      own.push_back(*each);
    else
      each = at::mul(*each, 1 / scale);
  }
  if (!own.empty()) at::_foreach_mul_(own, 1 / scale);
}

bool unscale(step_gradients& gradients, double scale) {
  const at::NoGradGuard no_grad;
  bool finite = true;
  for (auto& each : gradients)
    if (each) finite = unscale(*each, 1 / scale) && finite;
  return finite;
}

}  // namespace troupe::engine
