#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::engine {

/// How a channel's value 0 .. 255 is scaled: value * scale + bias.
struct channel_scale {
  float scale = 1;
  float bias = 0;

  /// (value / 255 - mean) / deviation
  static constexpr channel_scale normalising(float mean, float deviation) {
    return {1 / (255 * deviation), -mean / deviation};
  }
};

/// Resizes images of one size until the shorter side is `side`, and cuts the centre square out.
/// Bilinear; where it shrinks, the filter widens with the scale, so nothing aliases: the same
/// pixels as torchvision's Resize (antialias) and CenterCrop, without their rounding in between.
/// Only the rows and columns that are needed are computed. Immutable: any thread may use it.
class resampler {
 public:
  /// Every length at least 1.
  resampler(std::int64_t width, std::int64_t height, std::int64_t side);

  /// `pixels` is [height, width, C], with one scale for each of the C channels; `planes`, which
  /// becomes [C, side, side], has room for that.
  void run(std::span<const std::uint8_t> pixels, std::span<const channel_scale> scales,
           std::span<float> planes) const;

 private:
  // Which inputs, with which weights, make each output along one axis.
  struct axis {
    std::vector<std::size_t> first;  // [side] first input
    std::vector<float> weights;      // [side, taps], zero where an output needs fewer
    std::size_t taps = 0;
    std::size_t begin = 0;  // inputs that matter: begin .. end
    std::size_t end = 0;
  };
  static axis make_axis(std::int64_t length, std::int64_t resized, std::int64_t side);
  void squeeze_rows(std::span<const std::uint8_t> pixels, std::size_t channels,
                    std::vector<float>& rows) const;

  std::size_t width_;
  std::size_t height_;
  std::size_t side_;
  axis horizontal_;
  axis vertical_;
};

}  // namespace troupe::engine
