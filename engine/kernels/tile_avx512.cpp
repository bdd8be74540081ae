#if defined(__x86_64__)

#include <immintrin.h>

#include "engine/kernels/tile_loop.hpp"

namespace troupe::engine::kernels {
namespace {

struct avx512_set {
  static constexpr int lanes = 16;
  static constexpr int vectors = 4;  // six rows of them leave registers for a row and the columns
  using word = float;
  using vector = __m512;
  using sum = __m512;

  static vector load(const float* from) { return _mm512_loadu_ps(from); }
  static sum load_sum(const float* from) { return _mm512_loadu_ps(from); }
  static vector repeat(const float* from) { return _mm512_set1_ps(*from); }
  static sum zero() { return _mm512_setzero_ps(); }
  static sum add(sum one, sum other) { return _mm512_add_ps(one, other); }
  static sum add_product(sum to, vector one, vector other) {
    return _mm512_fmadd_ps(one, other, to);
  }
  static void store(float* to, sum from) { _mm512_storeu_ps(to, from); }
};

}  // namespace

tile_kernel avx512_tiles() {
  return kernel_of<avx512_set>();
}

}  // namespace troupe::engine::kernels

#endif
