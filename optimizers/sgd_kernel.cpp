#include "optimizers/sgd_kernel.hpp"

#include <bit>
#include <cmath>
#include <type_traits>

#if defined(__x86_64__)
#define TROUPE_TARGET(isa) [[gnu::target(isa)]]
#else
#define TROUPE_TARGET(isa)
#endif

namespace troupe::optimizers {
namespace {

enum class buffer_use : std::uint8_t { none, first, running };

template <class T>
struct pass {
  using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

  T* param;
  T* buffer;
  const T* gradient;
  std::int64_t count;
  bits flip;  ///< The sign bit if the gradient is to be negated, else 0.
  T minus_lr, momentum, undamped, weight_decay;
};

// Compiled once for each instruction set, by being inlined into a function that targets it.
template <class T, bool decays, buffer_use use, bool nesterov>
[[gnu::always_inline]] inline void loop(const pass<T>& over) {
  const auto [param, buffer, gradient, count, flip, minus_lr, momentum, undamped, weight_decay] =
      over;
  using bits = typename pass<T>::bits;
  for (std::int64_t i = 0; i < count; ++i) {
    const T old = param[i];
    T change = std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(gradient[i]) ^ flip));
    if constexpr (decays) change = std::fma(old, weight_decay, change);
    if constexpr (use != buffer_use::none) {
      T kept = change;
      if constexpr (use == buffer_use::running) {
        const T shrunk = buffer[i] * momentum;
        kept = std::fma(change, undamped, shrunk);
      }
      buffer[i] = kept;
      change = nesterov ? std::fma(kept, momentum, change) : kept;
    }
    param[i] = std::fma(change, minus_lr, old);
  }
}

template <class T, bool decays>
[[gnu::always_inline]] inline void choose(const pass<T>& over, buffer_use use, bool nesterov) {
  if (use == buffer_use::none) return loop<T, decays, buffer_use::none, false>(over);
  if (use == buffer_use::first)
    return nesterov ? loop<T, decays, buffer_use::first, true>(over)
                    : loop<T, decays, buffer_use::first, false>(over);
  return nesterov ? loop<T, decays, buffer_use::running, true>(over)
                  : loop<T, decays, buffer_use::running, false>(over);
}

template <class T>
[[gnu::always_inline]] inline void run(const pass<T>& over, buffer_use use, bool decays,
                                       bool nesterov) {
  return decays ? choose<T, true>(over, use, nesterov) : choose<T, false>(over, use, nesterov);
}

template <class T>
TROUPE_TARGET("avx512f,avx512vl,avx512dq,fma")
void run_avx512(const pass<T>& over, buffer_use use, bool decays, bool nesterov) {
  run(over, use, decays, nesterov);
}

template <class T>
TROUPE_TARGET("avx2,fma")
void run_avx2(const pass<T>& over, buffer_use use, bool decays, bool nesterov) {
  run(over, use, decays, nesterov);
}

template <class T>
void run_portable(const pass<T>& over, buffer_use use, bool decays, bool nesterov) {
  run(over, use, decays, nesterov);
}

}  // namespace

bool has(simd level) noexcept {
  if (level == simd::portable) return true;
#if defined(__x86_64__)
  if (level == simd::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has(simd::avx2) && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

simd best_simd() noexcept {
  if (has(simd::avx512)) return simd::avx512;
  return has(simd::avx2) ? simd::avx2 : simd::portable;
}

template <class T>
void sgd_update(simd level, T* param, T* buffer, const T* gradient, std::int64_t count, bool first,
                const sgd_factors& factors) {
  using bits = typename pass<T>::bits;
  const pass<T> over{param,
                     buffer,
                     gradient,
                     count,
                     factors.maximize ? bits{1} << (8 * sizeof(T) - 1) : bits{0},
                     static_cast<T>(-factors.lr),
                     static_cast<T>(factors.momentum),
                     static_cast<T>(1 - factors.dampening),
                     static_cast<T>(factors.weight_decay)};
  const buffer_use use = factors.momentum == 0 ? buffer_use::none
                         : first               ? buffer_use::first
                                               : buffer_use::running;
  const bool decays = factors.weight_decay != 0;
  switch (level) {
    case simd::avx512:
      return run_avx512(over, use, decays, factors.nesterov);
    case simd::avx2:
      return run_avx2(over, use, decays, factors.nesterov);
    case simd::portable:
      return run_portable(over, use, decays, factors.nesterov);
  }
}

template void sgd_update(simd, float*, float*, const float*, std::int64_t, bool,
                         const sgd_factors&);
template void sgd_update(simd, double*, double*, const double*, std::int64_t, bool,
                         const sgd_factors&);

}  // namespace troupe::optimizers
