#pragma once

#include <cstdint>

/// What the innermost loops of the convolution kernels share. Sources that are compiled for one
/// instruction set include this and compiler headers only: an inline function of any other header
/// could be the copy that the linker keeps for all CPUs.
namespace troupe::engine::kernels {

/// Pixels side by side, that of the input above that of the output.
struct pixel_run {
  std::int64_t x = 0;  ///< The first one's place, in pixels of the input.
  std::int64_t y = 0;  ///< The same of the output.
  std::int64_t count = 0;
};

/// A piece of one position of a kernel's weight gradient: `rows` output channels by `columns` input
/// channels, summed over all pixels of the runs in their order. Operands are words of four bytes,
/// numbers in f32 or pairs of numbers in bf16; steps count words.
struct tile {
  const void* x = nullptr;  ///< The first of the columns in pixel 0 of the input.
  std::int64_t x_pixel = 0;
  std::int64_t x_step = 0;  ///< Between the input's pixels of a run.
  const void* y = nullptr;  ///< The first of the rows in pixel 0 of the output's gradient.
  std::int64_t y_step = 0;  ///< Between its pixels.
  const pixel_run* runs = nullptr;
  std::int64_t run_count = 0;
  int rows = 0;
  int columns = 0;  ///< Words up to a whole number of vectors may be read, but are not written.
  float* to = nullptr;
  std::int64_t to_step = 0;       ///< Between rows, here and in the two below.
  const float* before = nullptr;  ///< Added first: the sum over earlier pixels. Null: none.
  const float* sum = nullptr;     ///< Added last. Null: none.
};

/// Computes tiles of up to `rows` by `lanes` * `vectors` numbers with one instruction set.
struct tile_kernel {
  void (*compute)(const tile& of) = nullptr;
  int rows = 0;
  int lanes = 0;    ///< Numbers of a vector.
  int vectors = 0;  ///< The most in a row of a tile.

  [[nodiscard]] constexpr int columns() const noexcept { return lanes * vectors; }
};

/// For any CPU, in f32.
[[nodiscard]] tile_kernel portable_tiles();
#if defined(__x86_64__)
/// With AVX2 and FMA, in f32.
[[nodiscard]] tile_kernel avx2_tiles();
/// With AVX-512, in f32.
[[nodiscard]] tile_kernel avx512_tiles();
/// With AVX-512's products of pairs in bf16, summed in f32.
[[nodiscard]] tile_kernel avx512_bf16_tiles();

/// Has AMX multiply matrices of bf16 in the first-level cache so many times, with no use for what
/// comes of it: the multiply-accumulates. 0: the system does not let this process. Needs a CPU that
/// `has_amx`.
[[nodiscard]] double amx_products(int times);
#endif

}  // namespace troupe::engine::kernels
