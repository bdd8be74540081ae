#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/tile.hpp"
#include "engine/kernels/weight_gradient.hpp"

namespace troupe::engine::kernels {

/// How many pieces of at most `most` a whole has.
[[nodiscard]] constexpr std::int64_t pieces(std::int64_t whole, std::int64_t most) noexcept {
  return (whole + most - 1) / most;
}

/// Rows of the output that are summed in one pass: [first_row, last_row) of each of the images
/// [first_image, last_image).
struct pixel_block {
  std::int64_t first_image = 0;
  std::int64_t last_image = 0;
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;

  [[nodiscard]] std::int64_t images() const noexcept { return last_image - first_image; }
  [[nodiscard]] std::int64_t rows() const noexcept { return last_row - first_row; }
};

/// Cuts a convolution's output into blocks of nearly the same size, whose operands stay in a core's
/// cache while the tiles are computed: whole images, or rows of one image. The cut depends on the
/// shape alone.
[[nodiscard]] std::vector<pixel_block> blocks_of(const convolution_shape& of);

/// The runs at one position of the kernel, of operands that are read as they lie. Pixels outside
/// the input are left out.
[[nodiscard]] std::vector<pixel_run> runs_at(const convolution_shape& of, const pixel_block& block,
                                             std::int64_t kernel_row, std::int64_t kernel_column);

/// The runs where the input's pixels lie side by side in the order of the runs, and the output's
/// begin with `first_y`.
[[nodiscard]] std::vector<pixel_run> side_by_side(const std::vector<pixel_run>& runs,
                                                  std::int64_t first_y);

/// How a block's operands are packed. A slot is `pixels` pixels of the output side by side, or
/// those of the input that one column of the kernel has under them; where there are none it holds
/// zeros. Slots of the input are [kernel columns, images, rows, width], of the output [images,
/// rows, width].
struct slot_grid {
  std::int64_t pixels = 1;
  std::int64_t width = 0;      ///< Slots of a row.
  std::int64_t first_row = 0;  ///< The input's first one that is packed.
  std::int64_t row_step = 1;   ///< From there to the next.
  std::int64_t rows = 0;       ///< Of the input that are packed, of each image.
};

[[nodiscard]] slot_grid grid_of(const convolution_shape& of, const pixel_block& block,
                                std::int64_t pixels);

/// The runs of slots at one position of the kernel.
[[nodiscard]] std::vector<pixel_run> packed_runs_at(const convolution_shape& of,
                                                    const pixel_block& block, const slot_grid& grid,
                                                    std::int64_t kernel_row,
                                                    std::int64_t kernel_column);

}  // namespace troupe::engine::kernels
