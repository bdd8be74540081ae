#pragma once

#include <cstdint>
#include <vector>

#include "messages/base/simd.hpp"

/// Batch norm over rows of channels, in as few passes over memory as there can be. T is float or
/// c10::BFloat16; the arithmetic is in f32, sums over all rows are in f64. Rows are shared out
/// among ATen's intra-op threads in blocks that depend on the extent alone, and sums are added in
/// the order of blocks: the same bits on every number of threads and at every `simd` level.
namespace troupe::engine::normalization_kernel {

/// Numbers [rows, channels], a row's side by side: images [N, C, H, W] in channels_last are
/// N x H x W rows.
struct extent {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
};

/// How a value is normalised: y = tail((x - mean) * scale + shift). `scale` is the weight
/// over the standard deviation, `shift` the bias. [channels] each.
struct line {
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
};

/// `add_relu` adds a number of another array first. NaN stays NaN.
enum class tail : std::uint8_t { none, relu, add_relu };

/// One number a channel.
using channel_values = std::vector<double>;

struct moments {
  channel_values mean;
  channel_values variance;  ///< Over the number of rows.
};

/// Reads x once. Sound where the mean is much larger than the deviation: each block adds up
/// differences from a value near its own mean, and blocks are joined as Chan, Golub and LeVeque do,
/// "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <class T>
[[nodiscard]] moments moments_of(simd level, const T* x, const extent& of);

/// Writes y. `added` is read with `add_relu` only.
template <class T>
void forward(simd level, tail after, const T* x, const T* added, T* y, const extent& of,
             const line& by);

/// Sums over rows of the gradient dz of what the line gave.
struct gradient_sums {
  channel_values plain;     ///< of dz
  channel_values centered;  ///< of dz * (x - mean)
};

/// The gradient dz is dy where the tail let the value through, else 0; as in PyTorch, a NaN was let
/// through. With `relu` that is computed from x as `forward` computed it (y is not read), with
/// `add_relu` it is told by y, and dz is written, which may be where dy is.
template <class T>
[[nodiscard]] gradient_sums sum_gradients(simd level, tail after, const T* dy, const T* x,
                                          const T* y, T* dz, const extent& of, const line& by);

/// Writes dx = (dz - plain - (x - mean) * centered) * scale, where `plain` and `centered` are
/// [channels]. `dy` is dz itself unless the tail is `relu`; dx may be where it is.
template <class T>
void input_gradient(simd level, tail after, const T* dy, const T* x, T* dx, const extent& of,
                    const line& by, const float* plain, const float* centered);

}  // namespace troupe::engine::normalization_kernel
