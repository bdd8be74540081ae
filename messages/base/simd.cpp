#include "messages/base/simd.hpp"

namespace troupe {

bool has(simd level) noexcept {
  if (level == simd::portable) return true;
#if defined(__x86_64__)
  if (level == simd::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has(simd::avx2) && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

simd best_simd() noexcept {
  if (has(simd::avx512)) return simd::avx512;
  return has(simd::avx2) ? simd::avx2 : simd::portable;
}

}  // namespace troupe
