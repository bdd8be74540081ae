#include "engine/kernels/tile_loop.hpp"

namespace troupe::engine::kernels {
namespace {

struct portable_set {
  static constexpr int lanes = 4;
  static constexpr int vectors = 2;  // with six rows all that sixteen registers hold
  using word = float;
  using vector [[gnu::vector_size(16)]] = float;
  using sum = vector;

  [[gnu::always_inline]] static vector load(const float* from) {
    vector made;
    __builtin_memcpy(&made, from, sizeof made);
    return made;
  }
  [[gnu::always_inline]] static vector load_sum(const float* from) { return load(from); }
  [[gnu::always_inline]] static vector repeat(const float* from) {
    return vector{*from, *from, *from, *from};
  }
  [[gnu::always_inline]] static sum zero() { return sum{}; }
  [[gnu::always_inline]] static sum add(sum one, sum other) { return one + other; }
  [[gnu::always_inline]] static sum add_product(sum to, vector one, vector other) {
    return to + one * other;
  }
  [[gnu::always_inline]] static void store(float* to, sum from) {
    __builtin_memcpy(to, &from, sizeof from);
  }
};

}  // namespace

tile_kernel portable_tiles() {
  return kernel_of<portable_set>();
}

}  // namespace troupe::engine::kernels
