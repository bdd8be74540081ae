#include "engine/kernels/pixel_walk.hpp"

#include <algorithm>

namespace troupe::engine::kernels {
namespace {

/// Numbers of both operands that a pass reads again and again; in f32 half of a second-level cache
/// of 1 MiB.
constexpr std::int64_t pass_numbers = 1 << 17;

/// Channels of the two that are read together with all others.
constexpr std::int64_t in_channels = 64;
constexpr std::int64_t out_channels = 128;

/// [index] of `count` nearly equal parts of `whole`.
std::int64_t part_begin(std::int64_t whole, std::int64_t count, std::int64_t index) {
  return whole * index / count;
}

/// Appends a run, or makes the last one longer where this one goes on.
void append(std::vector<pixel_run>& runs, const pixel_run& next, std::int64_t x_step) {
  if (!runs.empty()) {
    auto& last = runs.back();
    if (last.x + last.count * x_step == next.x && last.y + last.count == next.y) {
      last.count += next.count;
      return;
    }
  }
  runs.push_back(next);
}

/// Columns [first, last) of the output that have a pixel of the input under this one of the kernel.
struct column_range {
  column_range(const convolution_shape& of, std::int64_t kernel_column)
      : first(std::max<std::int64_t>(0, pieces(of.padding - kernel_column, of.stride))),
        last(std::min(
            of.out_width(),
            pieces(std::max<std::int64_t>(0, of.width + of.padding - kernel_column), of.stride))) {}

  std::int64_t first;
  std::int64_t last;
};

}  // namespace

std::vector<pixel_block> blocks_of(const convolution_shape& of) {
  const auto x_rows = std::min(of.stride, of.kernel_height);  // of the input, for one of the output
  const auto row_numbers = x_rows * of.width * std::min(of.in, in_channels) +
                           of.out_width() * std::min(of.out, out_channels);
  const auto rows = std::max<std::int64_t>(1, pass_numbers / row_numbers);
  const auto height = of.out_height();
  std::vector<pixel_block> blocks;
  if (rows >= height) {
    const auto count = pieces(of.images, rows / height);
    for (std::int64_t i = 0; i < count; ++i)
      blocks.push_back(
          {part_begin(of.images, count, i), part_begin(of.images, count, i + 1), 0, height});
    return blocks;
  }
  const auto count = pieces(height, rows);
  for (std::int64_t image = 0; image < of.images; ++image)
    for (std::int64_t i = 0; i < count; ++i)
      blocks.push_back(
          {image, image + 1, part_begin(height, count, i), part_begin(height, count, i + 1)});
  return blocks;
}

std::vector<pixel_run> runs_at(const convolution_shape& of, const pixel_block& block,
                               std::int64_t kernel_row, std::int64_t kernel_column) {
  const column_range columns(of, kernel_column);
  const auto count = columns.last - columns.first;
  std::vector<pixel_run> runs;
  if (count <= 0) return runs;
  for (auto image = block.first_image; image < block.last_image; ++image)
    for (auto row = block.first_row; row < block.last_row; ++row) {
      const auto under = row * of.stride - of.padding + kernel_row;
      if (under < 0 || under >= of.height) continue;
      const auto x = (image * of.height + under) * of.width + columns.first * of.stride -
                     of.padding + kernel_column;
      const auto y = (image * of.out_height() + row) * of.out_width() + columns.first;
      append(runs, {x, y, count}, of.stride);
    }
  return runs;
}

std::vector<pixel_run> side_by_side(const std::vector<pixel_run>& runs, std::int64_t first_y) {
  std::vector<pixel_run> found;
  std::int64_t x = 0;
  for (const auto& run : runs) {
    append(found, {x, run.y - first_y, run.count}, 1);
    x += run.count;
  }
  return found;
}

slot_grid grid_of(const convolution_shape& of, const pixel_block& block, std::int64_t pixels) {
  slot_grid grid{.pixels = pixels, .width = pieces(of.out_width(), pixels)};
  grid.row_step = of.kernel_height == 1 ? of.stride : 1;
  const auto first = block.first_row * of.stride - of.padding;
  const auto last = (block.last_row - 1) * of.stride - of.padding + of.kernel_height - 1;
  const auto above = pieces(std::max<std::int64_t>(0, -first), grid.row_step) * grid.row_step;
  grid.first_row = first + above;
  grid.rows = std::max<std::int64_t>(
      0, pieces(std::min(last, of.height - 1) - grid.first_row + 1, grid.row_step));
  return grid;
}

std::vector<pixel_run> packed_runs_at(const convolution_shape& of, const pixel_block& block,
                                      const slot_grid& grid, std::int64_t kernel_row,
                                      std::int64_t kernel_column) {
  std::vector<pixel_run> runs;
  for (std::int64_t image = 0; image < block.images(); ++image)
    for (auto row = block.first_row; row < block.last_row; ++row) {
      const auto under = row * of.stride - of.padding + kernel_row;
      if (under < 0 || under >= of.height) continue;
      const auto x = ((kernel_column * block.images() + image) * grid.rows +
                      (under - grid.first_row) / grid.row_step) *
                     grid.width;
      const auto y = (image * block.rows() + row - block.first_row) * grid.width;
      append(runs, {x, y, grid.width}, 1);
    }
  return runs;
}

}  // namespace troupe::engine::kernels
