#include "engine/parameter_server/mean.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_EVERY_CPU [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define TROUPE_EVERY_CPU
#endif

namespace troupe::engine {
namespace {

constexpr std::int64_t block = 2048;  // elements: stays in the first cache

/// How to divide by a count: where that gives the same bits, by a multiplication, which is faster.
struct divisor {
  bool multiplies = false;
  double by = 1;

  explicit divisor(std::size_t count)
      : multiplies(std::has_single_bit(count)),
        by(multiplies ? 1 / static_cast<double>(count) : static_cast<double>(count)) {}
};

// Inlined into a function for each instruction set. Every add and division is rounded on its own,
// so all of them give the same bits.
template <class T>
[[gnu::always_inline]] inline void mean_of_block(T* out, const T* const* from, std::size_t inputs,
                                                 std::int64_t count, bool multiplies, T by) {
  const T* sum = from[0];
  for (std::size_t input = 1; input + 1 < inputs; ++input, sum = out) {
    const T* const next = from[input];
    for (std::int64_t i = 0; i < count; ++i) out[i] = sum[i] + next[i];
  }
  const T* const last = from[inputs - 1];
  if (inputs == 1)
    for (std::int64_t i = 0; i < count; ++i) out[i] = multiplies ? sum[i] * by : sum[i] / by;
  else if (multiplies)
    for (std::int64_t i = 0; i < count; ++i) out[i] = (sum[i] + last[i]) * by;
  else
    for (std::int64_t i = 0; i < count; ++i) out[i] = (sum[i] + last[i]) / by;
}

TROUPE_EVERY_CPU void mean_of_floats(float* out, const float* const* from, std::size_t inputs,
                                     std::int64_t count, bool multiplies, float by) {
  mean_of_block(out, from, inputs, count, multiplies, by);
}

TROUPE_EVERY_CPU void widen(float* out, const std::uint16_t* bf16, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bf16[i]) << 16);
}

/// f32 in one pass over memory; bf16 inputs are widened block by block, on the way.
void mean_into(at::Tensor& out, const std::vector<at::Tensor>& from, const divisor& how) {
  float* const to = out.mutable_data_ptr<float>();
  const bool any_bf16 = std::ranges::any_of(
      from, [](const at::Tensor& each) { return each.scalar_type() == at::kBFloat16; });
  std::vector<float> widened(any_bf16 ? from.size() * block : 0);
  std::vector<const float*> inputs(from.size());
  for (std::int64_t begin = 0; begin < out.numel(); begin += block) {
    const auto length = std::min(block, out.numel() - begin);
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].scalar_type() == at::kFloat) {
        inputs[i] = from[i].const_data_ptr<float>() + begin;
        continue;
      }
      float* const wide = widened.data() + i * block;
      widen(wide, static_cast<const std::uint16_t*>(from[i].const_data_ptr()) + begin, length);
      inputs[i] = wide;
    }
    mean_of_floats(to + begin, inputs.data(), inputs.size(), length, how.multiplies,
                   static_cast<float>(how.by));
  }
}

}  // namespace

at::Tensor mean_of(std::span<const at::Tensor> tensors, std::size_t count, at::ScalarType dtype) {
  const auto& first = tensors.front();
  if (tensors.size() == 1 && count == 1) return first.to(dtype);
  std::vector<at::Tensor> from;
  from.reserve(tensors.size());
  const bool in_blocks = dtype == at::kFloat;
  for (const auto& each : tensors) {
    const bool widens = in_blocks && each.scalar_type() == at::kBFloat16;
    from.push_back((widens ? each : each.to(dtype)).resolve_neg().contiguous());
  }
  auto out = at::empty(first.sizes(), first.options().dtype(dtype));
  if (in_blocks) {
    mean_into(out, from, divisor(count));
    return out;
  }
  out.copy_(from.front());
  for (std::size_t i = 1; i < from.size(); ++i) out.add_(from[i]);
  return out.div_(static_cast<double>(count));
}

}  // namespace troupe::engine
