#include "engine/operators/normalization_kernel.hpp"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>

namespace troupe::engine::normalization_kernel {
namespace {

constexpr std::int64_t block_numbers = 1 << 16;  // stay in a core's cache
constexpr std::int64_t most_block_rows = 256;    // f32 sums stay exact enough

std::int64_t block_rows(const extent& of) {
  return std::clamp<std::int64_t>(block_numbers / of.channels, 4, most_block_rows);
}

std::int64_t blocks_of(const extent& of) {
  return (of.rows + block_rows(of) - 1) / block_rows(of);
}

/// A pass begins where the one before it ended, in what the caches still have. What other operators
/// wrote they wrote forwards.
enum class order : std::uint8_t { forwards, backwards };

/// Rows that one thread goes through: numbers [begin, end).
struct block {
  std::int64_t index = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

block block_at(std::int64_t index, const extent& of) {
  const auto begin = index * block_rows(of);
  return {index, begin * of.channels, std::min(begin + block_rows(of), of.rows) * of.channels};
}

double rows_at(std::int64_t index, const extent& of) {
  const auto within = block_at(index, of);
  return static_cast<double>((within.end - within.begin) / of.channels);
}

/// Calls `body` with each block.
template <class Body>
void for_blocks(simd level, order way, const extent& of, const Body& body) {
  at::parallel_for(0, blocks_of(of), 1, [&](std::int64_t begin, std::int64_t end) {
    run_at(level, [&] {
      for (auto i = begin; i < end; ++i)
        body(block_at(way == order::forwards ? i : begin + end - 1 - i, of));
    });
  });
}

/// Calls `body` with the first number of each row.
template <class Body>
void for_rows(simd level, order way, const extent& of, const Body& body) {
  for_blocks(level, way, of, [&](const block& within) {
    for (auto at = within.begin; at < within.end; at += of.channels) body(at);
  });
}

/// `count` rows of numbers for each block, [blocks, count, channels].
class block_sums {
 public:
  block_sums(const extent& of, std::int64_t count)
      : count_(count),
        channels_(of.channels),
        numbers_(std::make_unique<float[]>(
            static_cast<std::size_t>(blocks_of(of) * count * of.channels))) {}

  [[nodiscard]] float* row(std::int64_t block, std::int64_t which) const {
    return numbers_.get() + (block * count_ + which) * channels_;
  }

 private:
  std::int64_t count_;
  std::int64_t channels_;
  std::unique_ptr<float[]> numbers_;  // from 0
};

struct terms {
  float first;
  float second;
};

/// Adds `make(channel)` of one row to the sums.
template <class Make>
[[gnu::always_inline]] inline void add_row(float* first, float* second, std::int64_t channels,
                                           const Make& make) {
  TROUPE_EACH_ALONE
  for (std::int64_t c = 0; c < channels; ++c) {
    const terms t = make(c);
    first[c] += t.first;
    second[c] += t.second;
  }
}

/// To the nearest, or the even one of two, as c10 rounds. Without floating-point comparisons, which
/// GCC does not vectorise beside 16-bit numbers.
[[gnu::always_inline]] inline c10::BFloat16 rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const std::uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<std::uint16_t>(is_nan ? 0x7fc0 : nearest), c10::BFloat16::from_bits()};
}

/// Writes `make(channel)` for one row.
template <class Make>
[[gnu::always_inline]] inline void write_row(float* to, std::int64_t channels, const Make& make) {
  TROUPE_EACH_ALONE
  for (std::int64_t c = 0; c < channels; ++c) to[c] = make(c);
}

template <class Make>
[[gnu::always_inline]] inline void write_row(c10::BFloat16* to, std::int64_t channels,
                                             const Make& make) {
  constexpr std::int64_t some = 256;
  std::array<float, some> made;
  for (std::int64_t begin = 0; begin < channels; begin += some) {
    const auto count = std::min(some, channels - begin);
    float* const values = made.data();
    TROUPE_EACH_ALONE
    for (std::int64_t c = 0; c < count; ++c) values[c] = make(begin + c);
    TROUPE_EACH_ALONE
    for (std::int64_t c = 0; c < count; ++c) to[begin + c] = rounded(values[c]);
  }
}

/// The mean of the first eighth of the rows. From there to the mean of all of them it is at most
/// thrice their deviation, so that sums of squares around it lose next to nothing.
template <class T>
[[gnu::always_inline]] inline void find_center(const T* x, const block& within,
                                               std::int64_t channels, float* center) {
  const auto rows = (within.end - within.begin) / channels;
  const auto some = (rows + 7) / 8;
  for (std::int64_t row = 0; row < some; ++row) {
    const T* const from = x + within.begin + row * channels;
    TROUPE_EACH_ALONE
    for (std::int64_t c = 0; c < channels; ++c) center[c] += static_cast<float>(from[c]);
  }
  for (std::int64_t c = 0; c < channels; ++c) center[c] /= static_cast<float>(some);
}

[[gnu::always_inline]] inline float apply(float x, const line& by, std::int64_t c) {
  return std::fma(x - by.mean[c], by.scale[c], by.shift[c]);
}

[[gnu::always_inline]] inline float clamp(float value) {
  return value < 0 ? 0 : value;
}

[[gnu::always_inline]] inline float let_through(float gradient, float value) {
  return value <= 0 ? 0 : gradient;
}

/// What `moments_of` collects of each block, joined in f64.
moments join(const block_sums& sums, const extent& of) {
  const auto channels = static_cast<std::size_t>(of.channels);
  const auto count = static_cast<double>(of.rows);
  moments found{channel_values(channels), channel_values(channels)};
  for (std::int64_t i = 0; i < blocks_of(of); ++i) {
    const double rows = rows_at(i, of);
    for (std::size_t c = 0; c < channels; ++c) {
      const double center = sums.row(i, 0)[c];
      const double sum = sums.row(i, 1)[c];
      found.mean[c] += (rows * center + sum) / count;
    }
  }
  for (std::int64_t i = 0; i < blocks_of(of); ++i) {
    const double rows = rows_at(i, of);
    for (std::size_t c = 0; c < channels; ++c) {
      const double away = found.mean[c] - sums.row(i, 0)[c];
      const double sum = sums.row(i, 1)[c];
      const double squares = sums.row(i, 2)[c];
      found.variance[c] += (squares - 2 * away * sum + rows * away * away) / count;
    }
  }
  return found;
}

/// Calls `body(constant)` with the tail as a constant.
template <class Body>
void with(tail after, const Body& body) {
  switch (after) {
    case tail::none:
      return body(std::integral_constant<tail, tail::none>());
    case tail::relu:
      return body(std::integral_constant<tail, tail::relu>());
    case tail::add_relu:
      return body(std::integral_constant<tail, tail::add_relu>());
  }
}

}  // namespace

template <class T>
moments moments_of(simd level, const T* x, const extent& of) {
  block_sums sums(of, 3);  // center, sum and sum of squares of the distances from it
  for_blocks(level, order::backwards, of, [&](const block& within) {
    float* const center = sums.row(within.index, 0);
    float* const sum = sums.row(within.index, 1);
    float* const squares = sums.row(within.index, 2);
    find_center(x, within, of.channels, center);
    for (auto at = within.begin; at < within.end; at += of.channels)
      add_row(sum, squares, of.channels, [=](std::int64_t c) -> terms {
        const float away = static_cast<float>(x[at + c]) - center[c];
        return {away, away * away};
      });
  });
  return join(sums, of);
}

template <class T>
void forward(simd level, tail after, const T* x, const T* added, T* y, const extent& of,
             const line& by) {
  with(after, [&](auto which) {
    for_rows(level, order::forwards, of, [&](std::int64_t at) {
      write_row(y + at, of.channels, [=](std::int64_t c) {
        float value = apply(static_cast<float>(x[at + c]), by, c);
        if constexpr (which == tail::add_relu) value += static_cast<float>(added[at + c]);
        return which == tail::none ? value : clamp(value);
      });
    });
  });
}

template <class T>
gradient_sums sum_gradients(simd level, tail after, const T* dy, const T* x, const T* y, T* dz,
                            const extent& of, const line& by) {
  block_sums sums(of, 2);
  with(after, [&](auto which) {
    const T* const gradients = which == tail::add_relu ? dz : dy;
    for_blocks(level, order::backwards, of, [&](const block& within) {
      float* const plain = sums.row(within.index, 0);
      float* const centered = sums.row(within.index, 1);
      for (auto at = within.begin; at < within.end; at += of.channels) {
        if constexpr (which == tail::add_relu)
          write_row(dz + at, of.channels, [=](std::int64_t c) {
            return let_through(static_cast<float>(dy[at + c]), static_cast<float>(y[at + c]));
          });
        add_row(plain, centered, of.channels, [=](std::int64_t c) -> terms {
          const float value = static_cast<float>(x[at + c]);
          float gradient = static_cast<float>(gradients[at + c]);
          if constexpr (which == tail::relu) gradient = let_through(gradient, apply(value, by, c));
          return {gradient, gradient * (value - by.mean[c])};
        });
      }
    });
  });

  const auto channels = static_cast<std::size_t>(of.channels);
  gradient_sums found{channel_values(channels), channel_values(channels)};
  for (std::int64_t block = 0; block < blocks_of(of); ++block)
    for (std::size_t c = 0; c < channels; ++c) {
      found.plain[c] += static_cast<double>(sums.row(block, 0)[c]);
      found.centered[c] += static_cast<double>(sums.row(block, 1)[c]);
    }
  return found;
}

template <class T>
void input_gradient(simd level, tail after, const T* dy, const T* x, T* dx, const extent& of,
                    const line& by, const float* plain, const float* centered) {
  with(after, [&](auto which) {
    for_rows(level, order::forwards, of, [&](std::int64_t at) {
      write_row(dx + at, of.channels, [=](std::int64_t c) {
        const float value = static_cast<float>(x[at + c]);
        float gradient = static_cast<float>(dy[at + c]);
        if constexpr (which == tail::relu) gradient = let_through(gradient, apply(value, by, c));
        return std::fma(by.mean[c] - value, centered[c], gradient - plain[c]) * by.scale[c];
      });
    });
  });
}

#define TROUPE_INSTANTIATE(T)                                                                  \
  template moments moments_of(simd, const T*, const extent&);                                  \
  template void forward(simd, tail, const T*, const T*, T*, const extent&, const line&);       \
  template gradient_sums sum_gradients(simd, tail, const T*, const T*, const T*, T*,           \
                                       const extent&, const line&);                            \
  template void input_gradient(simd, tail, const T*, const T*, T*, const extent&, const line&, \
                               const float*, const float*)
TROUPE_INSTANTIATE(float);
TROUPE_INSTANTIATE(c10::BFloat16);
#undef TROUPE_INSTANTIATE

}  // namespace troupe::engine::normalization_kernel
