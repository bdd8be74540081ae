#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/pixel_walk.hpp"
#include "messages/base/simd.hpp"

namespace troupe::engine::kernels {

/// Four bytes of a packed operand: a number in f32, or those of two pixels in bf16, the first in
/// the low half.
using word = std::uint32_t;

/// Packs a block's pixels of the input, [kernel columns, images, rows, slots, channels]. Channels
/// are filled up with zeros to `channels`. A slot of one pixel is in f32, of two in bf16. T is
/// float or c10::BFloat16.
template <class T>
void pack_input(simd level, const convolution_shape& of, const pixel_block& block,
                const slot_grid& grid, std::int64_t channels, const T* input, word* to);

/// Packs a block's pixels of the output's gradient, [images, rows, slots, out].
template <class T>
void pack_gradient(simd level, const convolution_shape& of, const pixel_block& block,
                   const slot_grid& grid, const T* gradient, word* to);

/// Copies `words` of each pixel of the runs side by side, [pixels, words]. Pixels of the operand
/// are `pixel` words apart, those of a run `step` words.
void pack_columns(simd level, const std::vector<pixel_run>& runs, const word* operand,
                  std::int64_t pixel, std::int64_t step, std::int64_t words, word* to);

/// Copies a group of tiles' words of `pixels` pixels that are `step` words apart: of each tile
/// [pixels, words]. `rows`: the word that each tile begins with, and where the last one ends.
void pack_rows(simd level, const std::vector<std::int64_t>& rows, const word* operand,
               std::int64_t pixels, std::int64_t step, word* to);

}  // namespace troupe::engine::kernels
