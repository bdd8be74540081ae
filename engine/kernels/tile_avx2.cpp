#if defined(__x86_64__)

#include <immintrin.h>

#include "engine/kernels/tile_loop.hpp"

namespace troupe::engine::kernels {
namespace {

struct avx2_set {
  static constexpr int lanes = 8;
  static constexpr int vectors = 2;  // with six rows all that sixteen registers hold
  using word = float;
  using vector = __m256;
  using sum = __m256;

  static vector load(const float* from) { return _mm256_loadu_ps(from); }
  static sum load_sum(const float* from) { return _mm256_loadu_ps(from); }
  static vector repeat(const float* from) { return _mm256_broadcast_ss(from); }
  static sum zero() { return _mm256_setzero_ps(); }
  static sum add(sum one, sum other) { return _mm256_add_ps(one, other); }
  static sum add_product(sum to, vector one, vector other) {
    return _mm256_fmadd_ps(one, other, to);
  }
  static void store(float* to, sum from) { _mm256_storeu_ps(to, from); }
};

}  // namespace

tile_kernel avx2_tiles() {
  return kernel_of<avx2_set>();
}

}  // namespace troupe::engine::kernels

#endif
