#include "engine/kernels/weight_gradient.hpp"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cassert>
#include <cctype>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/kernels/packing.hpp"
#include "engine/kernels/pixel_walk.hpp"
#include "engine/kernels/tile.hpp"

namespace troupe::engine::kernels {
namespace {

simd level_of(instructions which) {
  if (which == instructions::portable) return simd::portable;
  return which == instructions::avx2 ? simd::avx2 : simd::avx512;
}

/// Uninitialised memory of the pool that tensors come from.
template <class T>
class scratch {
 public:
  explicit scratch(std::int64_t count)
      : memory_(c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(count) * sizeof(T))) {}

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.get()); }

 private:
  c10::DataPtr memory_;
};

/// Tiles that are computed together while the rows of the output's gradient that they read lie
/// packed in the second-level cache.
constexpr std::int64_t tiles_of_a_group = 48;

/// Whether tiles are read from panels: each reads a few channels of many pixels, and where pixels
/// are far apart neither caches nor prefetchers serve that. Copies cost the more per product the
/// fewer channels there are and the wider vectors are; this is where they were measured to pay.
bool reads_panels(const convolution_shape& of, int lanes) {
  if (std::min(of.in, of.out) < 128) return false;
  return lanes < 16 || of.in * of.out >= 1 << 16;
}

/// One computation of a gradient. Operands in f32 stay as they lie, unless a pixel's channels are
/// no whole number of vectors; others are packed block by block. Tiles read them there or from
/// panels.
template <class T>
class gradient_pass {
 public:
  gradient_pass(instructions with, const convolution_shape& of)
      : of_(of),
        level_(level_of(with)),
        pixels_(!std::is_same_v<T, float> && with == instructions::avx512_bf16 ? 2 : 1),
        kernel_(tiles_of(with, pixels_ == 2)),
        channels_(pieces(of.in, kernel_.lanes) * kernel_.lanes),
        as_they_lie_(std::is_same_v<T, float> && channels_ == of.in),
        in_panels_(reads_panels(of, kernel_.lanes)) {}

  void run(const T* input, const T* gradient, float* to, const float* sum) const {
    const auto blocks = blocks_of(of_);
    const bool apart = sum != nullptr && blocks.size() > 1;
    const scratch<float> before(apart ? of_.out * row_numbers() : 0);
    const auto packed = as_they_lie_ ? words{} : most_words(blocks);
    const scratch<word> x(packed.x);
    const scratch<word> y(packed.y);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const bool is_last = i + 1 == blocks.size();
      tile made;
      made.to_step = row_numbers();
      made.to = apart && !is_last ? before.data() : to;
      made.before = i == 0 ? nullptr : apart ? before.data() : to;
      made.sum = is_last ? sum : nullptr;
      if (as_they_lie_)
        add_as_they_lie(blocks[i], input, gradient, made);
      else
        add_packed(blocks[i], input, gradient, x.data(), y.data(), made);
    }
  }

 private:
  using all_runs = std::vector<std::vector<pixel_run>>;  // by position of the kernel
  struct words {
    std::int64_t x = 0;
    std::int64_t y = 0;
  };
  struct pixel_range {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  [[nodiscard]] std::int64_t row_numbers() const {
    return of_.kernel_height * of_.kernel_width * of_.in;
  }

  [[nodiscard]] words most_words(const std::vector<pixel_block>& blocks) const {
    words most;
    for (const auto& block : blocks) {
      const auto grid = grid_of(of_, block, pixels_);
      const auto line = block.images() * grid.width;
      most.x = std::max(most.x, of_.kernel_width * grid.rows * line * channels_);
      most.y = std::max(most.y, block.rows() * line * of_.out);
    }
    return most;
  }

  template <class Runs>
  [[nodiscard]] all_runs at_each_position(const Runs& runs) const {
    all_runs found;
    for (std::int64_t row = 0; row < of_.kernel_height; ++row)
      for (std::int64_t column = 0; column < of_.kernel_width; ++column)
        found.push_back(runs(row, column));
    return found;
  }

  void add_as_they_lie(const pixel_block& block, const T* input, const T* gradient,
                       tile made) const {
    made.x = input;
    made.x_pixel = of_.in;
    made.x_step = of_.in * of_.stride;
    made.y = gradient;
    made.y_step = of_.out;
    const auto first = (block.first_image * of_.out_height() + block.first_row) * of_.out_width();
    compute(made, {first, block.images() * block.rows() * of_.out_width()},
            at_each_position([&](std::int64_t row, std::int64_t column) {
              return runs_at(of_, block, row, column);
            }));
  }

  void add_packed(const pixel_block& block, const T* input, const T* gradient, word* x, word* y,
                  tile made) const {
    const auto grid = grid_of(of_, block, pixels_);
    pack_input(level_, of_, block, grid, channels_, input, x);
    pack_gradient(level_, of_, block, grid, gradient, y);
    made.x = x;
    made.x_pixel = made.x_step = channels_;
    made.y = y;
    made.y_step = of_.out;
    compute(made, {0, block.images() * block.rows() * grid.width},
            at_each_position([&](std::int64_t row, std::int64_t column) {
              return packed_runs_at(of_, block, grid, row, column);
            }));
  }

  /// All tiles of the gradient; `whole` begins where the first one does. `pixels` of the output's
  /// gradient are the block's.
  void compute(const tile& whole, const pixel_range& pixels, const all_runs& runs) const {
    if (in_panels_)
      compute_in_panels(whole, pixels, runs);
    else
      compute_tiles(whole, runs);
  }

  void compute_tiles(const tile& whole, const all_runs& runs) const {
    const auto across = pieces(of_.in, kernel_.columns());
    const auto down = tiles_down();
    at::parallel_for(0, across * down, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto row = first_row(i % down);
        auto one = at_column(whole, i / down * kernel_.columns());
        one.rows = static_cast<int>(first_row(i % down + 1) - row);
        one.y = static_cast<const word*>(whole.y) + row;
        one = moved(one, row * row_numbers());
        for (const auto& each : runs) {
          compute_runs(one, each);
          one = moved(one, of_.in);
        }
      }
    });
  }

  /// The same tiles in another order. A panel is what the tiles of one column or row of tiles read,
  /// copied side by side.
  void compute_in_panels(const tile& whole, const pixel_range& pixels, const all_runs& runs) const {
    const auto across = pieces(of_.in, kernel_.columns());
    const auto down = tiles_down();
    const auto groups = pieces(down, tiles_of_a_group);
    all_runs packed;
    for (const auto& each : runs) packed.push_back(side_by_side(each, pixels.first));
    at::parallel_for(0, groups * across, 1, [&](std::int64_t begin, std::int64_t end) {
      const scratch<word> x(pixels.count * kernel_.columns());
      const scratch<word> y(pixels.count * kernel_.rows * pieces(down, groups));
      std::vector<std::int64_t> rows;
      for (auto i = begin; i < end; ++i) {
        if (i == begin || i % across == 0) {
          const auto group = i / across;
          rows = first_rows(down * group / groups, down * (group + 1) / groups);
          pack_rows(level_, rows, static_cast<const word*>(whole.y) + pixels.first * whole.y_step,
                    pixels.count, whole.y_step, y.data());
        }
        auto one = at_column(whole, i % across * kernel_.columns());
        const auto* const from = static_cast<const word*>(one.x);
        one.x = x.data();
        one.x_pixel = one.x_step = pieces(one.columns, kernel_.lanes) * kernel_.lanes;
        one.y = y.data();
        for (std::size_t position = 0; position < runs.size(); ++position) {
          pack_columns(level_, runs[position], from, whole.x_pixel, whole.x_step, one.x_step,
                       x.data());
          compute_group(one, pixels.count, rows, packed[position]);
          one = moved(one, of_.in);
        }
      }
    });
  }

  /// The tiles that begin with these rows, whose panels begin with that of `one`.
  void compute_group(const tile& one, std::int64_t pixels, const std::vector<std::int64_t>& rows,
                     const std::vector<pixel_run>& runs) const {
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
      auto here = moved(one, rows[i] * row_numbers());
      here.rows = static_cast<int>(rows[i + 1] - rows[i]);
      here.y = static_cast<const word*>(one.y) + (rows[i] - rows.front()) * pixels;
      here.y_step = here.rows;
      compute_runs(here, runs);
    }
  }

  void compute_runs(tile one, const std::vector<pixel_run>& runs) const {
    one.runs = runs.data();
    one.run_count = static_cast<std::int64_t>(runs.size());
    kernel_.compute(one);
  }

  /// Tiles in a column of them; they are of nearly the same size.
  [[nodiscard]] std::int64_t tiles_down() const { return pieces(of_.out, kernel_.rows); }

  /// The row that one of them begins with.
  [[nodiscard]] std::int64_t first_row(std::int64_t index) const {
    return of_.out * index / tiles_down();
  }

  /// Those of the tiles [begin, end], the last of which may be none.
  [[nodiscard]] std::vector<std::int64_t> first_rows(std::int64_t begin, std::int64_t end) const {
    std::vector<std::int64_t> rows;
    for (auto i = begin; i <= end; ++i) rows.push_back(first_row(i));
    return rows;
  }

  /// A tile of all rows that begins with a column.
  [[nodiscard]] tile at_column(const tile& whole, std::int64_t column) const {
    auto one = moved(whole, column);
    one.columns = static_cast<int>(std::min<std::int64_t>(kernel_.columns(), of_.in - column));
    one.x = static_cast<const word*>(whole.x) + column;
    return one;
  }

  /// A tile whose numbers lie so much further on.
  [[nodiscard]] static tile moved(tile one, std::int64_t numbers) {
    one.to += numbers;
    if (one.before) one.before += numbers;
    if (one.sum) one.sum += numbers;
    return one;
  }

  const convolution_shape& of_;
  simd level_;
  std::int64_t pixels_;  // of a slot
  tile_kernel kernel_;
  std::int64_t channels_;  // a whole number of vectors
  bool as_they_lie_;
  bool in_panels_;
};

}  // namespace

bool has(instructions which) noexcept {
  if (!troupe::has(level_of(which))) return false;
#if defined(__x86_64__)
  if (which == instructions::avx512_bf16) return __builtin_cpu_supports("avx512bf16");
#endif
  return true;
}

instructions best_instructions() noexcept {
  for (const auto each : {instructions::avx512_bf16, instructions::avx512, instructions::avx2})
    if (has(each)) return each;
  return instructions::portable;
}

tile_kernel tiles_of([[maybe_unused]] instructions which, [[maybe_unused]] bool pairs) {
#if defined(__x86_64__)
  if (pairs) return avx512_bf16_tiles();
  if (which == instructions::avx2) return avx2_tiles();
  if (which != instructions::portable) return avx512_tiles();
#endif
  return portable_tiles();
}

template <class T>
void weight_gradient(instructions with, const convolution_shape& of, const T* input,
                     const T* gradient, float* to, const float* sum) {
  assert(has(with) && of.out_height() > 0 && of.out_width() > 0 && of.images > 0);
  gradient_pass<T>(with, of).run(input, gradient, to, sum);
}

bool leaves_amx(std::string_view onednn_limit) noexcept {
  std::string limit(onednn_limit);
  std::ranges::transform(limit, limit.begin(),
                         [](unsigned char letter) { return std::toupper(letter); });
  const bool is_known = limit.starts_with("SSE") || limit.starts_with("AVX");
  return !is_known || limit.find("AMX") != std::string::npos;
}

bool has_amx() noexcept {
#if defined(__x86_64__)
  static const bool has = [] {
    const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
    return __builtin_cpu_supports("amx-bf16") && leaves_amx(limit == nullptr ? "" : limit);
  }();
  return has;
#else
  return false;
#endif
}

namespace {

/// On CPUs with AMX oneDNN is slow where an image has few pixels, in f32 also in 1x1 convolutions
/// of many input channels, and else it is fast.
template <class T>
bool outruns_onednn_with_amx(bool is_point, const convolution_shape& of) {
  const auto pixels = of.out_height() * of.out_width();
  if constexpr (std::is_same_v<T, float>)
    return pixels <= 64 || (is_point ? of.in >= 1024 && of.out >= 256 : of.stride > 1);
  return pixels <= 16 && (!is_point || of.stride > 1);
}

}  // namespace

template <class T>
bool outruns_onednn(instructions with, bool amx, const convolution_shape& of) noexcept {
  if (with == instructions::portable || of.in < 64 || of.in % 16 != 0) return false;
  const bool is_point = of.kernel_height * of.kernel_width == 1;
  if (amx) return outruns_onednn_with_amx<T>(is_point, of);
  if (!is_point) return true;
  if (with == instructions::avx2) return !std::is_same_v<T, float>;
  // Both reach the same rate in the other convolutions of one pixel, or memory bounds them.
  if constexpr (std::is_same_v<T, float>) return of.in <= 2 * of.out || of.in >= 1024;
  return with == instructions::avx512_bf16 && of.in * of.out >= 1 << 18;
}

template bool outruns_onednn<float>(instructions, bool, const convolution_shape&) noexcept;
template bool outruns_onednn<c10::BFloat16>(instructions, bool, const convolution_shape&) noexcept;
template void weight_gradient(instructions, const convolution_shape&, const float*, const float*,
                              float*, const float*);
template void weight_gradient(instructions, const convolution_shape&, const c10::BFloat16*,
                              const c10::BFloat16*, float*, const float*);

}  // namespace troupe::engine::kernels
