#include "engine/kernels/packing.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

namespace troupe::engine::kernels {
namespace {

[[gnu::always_inline]] inline word bits(float value) {
  return std::bit_cast<word>(value);
}

[[gnu::always_inline]] inline word bits(c10::BFloat16 value) {
  return value.x;
}

/// Writes the words of one slot: of one pixel in f32, or of two in bf16.
template <class T>
[[gnu::always_inline]] inline void write_words(std::int64_t pixels, const T* first, const T* second,
                                               std::int64_t count, word* to) {
  constexpr int shift = std::is_same_v<T, float> ? 0 : 16;  // of bf16 to f32
  if (pixels == 2) {
    TROUPE_EACH_ALONE
    for (std::int64_t c = 0; c < count; ++c) to[c] = bits(first[c]) | bits(second[c]) << 16;
  } else {
    TROUPE_EACH_ALONE
    for (std::int64_t c = 0; c < count; ++c) to[c] = bits(first[c]) << shift;
  }
}

template <std::int64_t Words>
[[gnu::always_inline]] inline void copy_fixed(const word* from, std::int64_t step,
                                              std::int64_t pixels, word* to) {
  for (; pixels > 0; --pixels, from += step, to += Words) {
    TROUPE_EACH_ALONE
    for (std::int64_t i = 0; i < Words; ++i) to[i] = from[i];
  }
}

/// Copies words of pixels side by side. The usual numbers of them are known to the compiler.
[[gnu::always_inline]] inline void copy_pixels(const word* from, std::int64_t step,
                                               std::int64_t pixels, std::int64_t words, word* to) {
  switch (words) {
    case 5:
      return copy_fixed<5>(from, step, pixels, to);
    case 6:
      return copy_fixed<6>(from, step, pixels, to);
    case 8:
      return copy_fixed<8>(from, step, pixels, to);
    case 16:
      return copy_fixed<16>(from, step, pixels, to);
    case 64:
      return copy_fixed<64>(from, step, pixels, to);
    default:
      for (; pixels > 0; --pixels, from += step, to += words) std::copy_n(from, words, to);
  }
}

/// Calls `body(image, row)` for each of them, counted from the block's first ones, on ATen's
/// threads.
template <class Body>
void for_rows(simd level, std::int64_t images, std::int64_t rows, const Body& body) {
  at::parallel_for(0, images * rows, 1, [&](std::int64_t begin, std::int64_t end) {
    run_at(level, [&] {
      for (auto i = begin; i < end; ++i) body(i / rows, i % rows);
    });
  });
}

}  // namespace

template <class T>
void pack_input(simd level, const convolution_shape& of, const pixel_block& block,
                const slot_grid& grid, std::int64_t channels, const T* input, word* to) {
  const std::vector<T> nothing(static_cast<std::size_t>(of.in), T(0));
  const auto column_slots = block.images() * grid.rows * grid.width;  // of one column of the kernel
  for_rows(level, block.images(), grid.rows, [&](std::int64_t image, std::int64_t row) {
    const auto from_row =
        (block.first_image + image) * of.height + grid.first_row + row * grid.row_step;
    const T* const from = input + from_row * of.width * of.in;
    const auto pixel_at = [&](std::int64_t out_column, std::int64_t kernel_column) {
      const auto column = out_column * of.stride - of.padding + kernel_column;
      const bool is_there = out_column < of.out_width() && column >= 0 && column < of.width;
      return is_there ? from + column * of.in : nothing.data();
    };
    for (std::int64_t column = 0; column < of.kernel_width; ++column) {
      word* place =
          to + (column * column_slots + (image * grid.rows + row) * grid.width) * channels;
      for (std::int64_t i = 0; i < grid.width; ++i) {
        const auto pixel = i * grid.pixels;
        write_words(grid.pixels, pixel_at(pixel, column), pixel_at(pixel + 1, column), of.in,
                    place);
        std::fill(place + of.in, place + channels, 0);
        place += channels;
      }
    }
  });
}

template <class T>
void pack_gradient(simd level, const convolution_shape& of, const pixel_block& block,
                   const slot_grid& grid, const T* gradient, word* to) {
  const std::vector<T> nothing(static_cast<std::size_t>(of.out), T(0));
  for_rows(level, block.images(), block.rows(), [&](std::int64_t image, std::int64_t row) {
    const auto from_row = (block.first_image + image) * of.out_height() + block.first_row + row;
    const T* const from = gradient + from_row * of.out_width() * of.out;
    word* place = to + (image * block.rows() + row) * grid.width * of.out;
    for (std::int64_t i = 0; i < grid.width; ++i) {
      const auto pixel = i * grid.pixels;
      const T* const first = from + pixel * of.out;
      const T* const second = pixel + 1 < of.out_width() ? first + of.out : nothing.data();
      write_words(grid.pixels, first, second, of.out, place);
      place += of.out;
    }
  });
}

void pack_columns(simd level, const std::vector<pixel_run>& runs, const word* operand,
                  std::int64_t pixel, std::int64_t step, std::int64_t words, word* to) {
  run_at(level, [&] {
    for (const auto& run : runs) {
      copy_pixels(operand + run.x * pixel, step, run.count, words, to);
      to += run.count * words;
    }
  });
}

void pack_rows(simd level, const std::vector<std::int64_t>& rows, const word* operand,
               std::int64_t pixels, std::int64_t step, word* to) {
  // So few pixels at a time stay in the first-level cache, however far apart they are.
  constexpr std::int64_t at_a_time = 8;
  run_at(level, [&] {
    for (std::int64_t pixel = 0; pixel < pixels; pixel += at_a_time)
      for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
        const auto words = rows[i + 1] - rows[i];
        copy_pixels(operand + pixel * step + rows[i], step, std::min(at_a_time, pixels - pixel),
                    words, to + (rows[i] - rows.front()) * pixels + pixel * words);
      }
  });
}

#define TROUPE_INSTANTIATE(T)                                                                    \
  template void pack_input(simd, const convolution_shape&, const pixel_block&, const slot_grid&, \
                           std::int64_t, const T*, word*);                                       \
  template void pack_gradient(simd, const convolution_shape&, const pixel_block&,                \
                              const slot_grid&, const T*, word*)
TROUPE_INSTANTIATE(float);
TROUPE_INSTANTIATE(c10::BFloat16);
#undef TROUPE_INSTANTIATE

}  // namespace troupe::engine::kernels
