#pragma once

#include <cstdint>

namespace troupe::optimizers {

/// Instruction sets that the kernels are built for. All give the same bits.
enum class simd : std::uint8_t { portable, avx2, avx512 };

/// Whether this CPU has it.
[[nodiscard]] bool has(simd level) noexcept;

/// The best this CPU has.
[[nodiscard]] simd best_simd() noexcept;

struct sgd_factors {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// One SGD update of `count` elements, in one pass. `buffer` is the momentum buffer: not read but
/// written when `first` (may be null without momentum). Rounds as ATen's operators do one after the
/// other: factors are rounded to T, every add of a scaled tensor is one FMA. T is float or double.
template <class T>
void sgd_update(simd level, T* param, T* buffer, const T* gradient, std::int64_t count, bool first,
                const sgd_factors& factors);

}  // namespace troupe::optimizers
