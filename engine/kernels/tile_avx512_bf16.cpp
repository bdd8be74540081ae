#if defined(__x86_64__)

#include <immintrin.h>

#include "engine/kernels/tile_loop.hpp"

namespace troupe::engine::kernels {
namespace {

/// A word is two numbers, of two pixels.
struct avx512_bf16_set {
  static constexpr int lanes = 16;
  static constexpr int vectors = 4;
  using word = std::uint32_t;
  using vector = __m512i;
  using sum = __m512;

  static vector load(const word* from) { return _mm512_loadu_si512(from); }
  static sum load_sum(const float* from) { return _mm512_loadu_ps(from); }
  static vector repeat(const word* from) { return _mm512_set1_epi32(static_cast<int>(*from)); }
  static sum zero() { return _mm512_setzero_ps(); }
  static sum add(sum one, sum other) { return _mm512_add_ps(one, other); }
  static sum add_product(sum to, vector one, vector other) {
    return _mm512_dpbf16_ps(to, reinterpret_cast<__m512bh>(one), reinterpret_cast<__m512bh>(other));
  }
  static void store(float* to, sum from) { _mm512_storeu_ps(to, from); }
};

}  // namespace

tile_kernel avx512_bf16_tiles() {
  return kernel_of<avx512_bf16_set>();
}

}  // namespace troupe::engine::kernels

#endif
