#include "engine/data/image/resample.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace troupe::engine {
namespace {

// The length of a side after the shorter one became `side`; rounded as torchvision does.
std::int64_t resized_length(std::int64_t length, std::int64_t shorter, std::int64_t side) {
  return std::max(side, side * length / shorter);
}

}  // namespace

resampler::axis resampler::make_axis(std::int64_t length, std::int64_t resized, std::int64_t side) {
  const double scale = static_cast<double>(length) / static_cast<double>(resized);
  const double support = std::max(scale, 1.0);
  // Rounds halves to even, as torchvision's CenterCrop does.
  const auto crop = std::nearbyint(static_cast<double>(resized - side) / 2);
  axis made;
  made.taps = std::min(static_cast<std::size_t>(length),
                       static_cast<std::size_t>(std::ceil(support)) * 2 + 1);
  made.weights.assign(made.taps * static_cast<std::size_t>(side), 0);
  for (std::size_t out = 0; out < static_cast<std::size_t>(side); ++out) {
    const double centre = (crop + static_cast<double>(out) + 0.5) * scale;
    const auto lowest = std::max<std::int64_t>(0, std::lround(centre - support));
    const auto highest = std::min<std::int64_t>(length, std::lround(centre + support));
    // A window at the end of the axis starts earlier, so that all windows have the same width.
    const auto first =
        std::min(static_cast<std::size_t>(lowest), static_cast<std::size_t>(length) - made.taps);
    made.first.push_back(first);
    double sum = 0;
    for (auto in = lowest; in < highest; ++in)
      sum += std::max(0.0, 1 - std::abs(static_cast<double>(in) + 0.5 - centre) / support);
    for (auto in = lowest; in < highest; ++in)
      made.weights[out * made.taps + static_cast<std::size_t>(in) - first] = static_cast<float>(
          std::max(0.0, 1 - std::abs(static_cast<double>(in) + 0.5 - centre) / support) / sum);
  }
  made.begin = made.first.front();
  made.end = made.first.back() + made.taps;
  return made;
}

resampler::resampler(std::int64_t width, std::int64_t height, std::int64_t side)
    : width_(static_cast<std::size_t>(width)),
      height_(static_cast<std::size_t>(height)),
      side_(static_cast<std::size_t>(side)) {
  assert(width >= 1 && height >= 1 && side >= 1);
  const auto shorter = std::min(width, height);
  horizontal_ = make_axis(width, resized_length(width, shorter, side), side);
  vertical_ = make_axis(height, resized_length(height, shorter, side), side);
}

// The horizontal pass: [height, width, C] u8 to rows [vertical_.end - begin, C, side] f32.
void resampler::squeeze_rows(std::span<const std::uint8_t> pixels, std::size_t channels,
                             std::vector<float>& rows) const {
  rows.resize((vertical_.end - vertical_.begin) * channels * side_);
  float* to = rows.data();
  for (std::size_t y = vertical_.begin; y < vertical_.end; ++y) {
    const auto* row = pixels.data() + y * width_ * channels;
    for (std::size_t channel = 0; channel < channels; ++channel, to += side_)
      for (std::size_t x = 0; x < side_; ++x) {
        const auto* from = row + horizontal_.first[x] * channels + channel;
        const auto* weights = horizontal_.weights.data() + x * horizontal_.taps;
        float sum = 0;
        for (std::size_t tap = 0; tap < horizontal_.taps; ++tap)
          sum += weights[tap] * static_cast<float>(from[tap * channels]);
        to[x] = sum;
      }
  }
}

void resampler::run(std::span<const std::uint8_t> pixels, std::span<const channel_scale> scales,
                    std::span<float> planes) const {
  const auto channels = scales.size();
  assert(pixels.size() == width_ * height_ * channels);
  assert(planes.size() >= channels * side_ * side_);
  std::vector<float> rows;
  squeeze_rows(pixels, channels, rows);
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t y = 0; y < side_; ++y) {
      float* to = planes.data() + (channel * side_ + y) * side_;
      std::fill_n(to, side_, scales[channel].bias);
      for (std::size_t tap = 0; tap < vertical_.taps; ++tap) {
        const auto weight = vertical_.weights[y * vertical_.taps + tap] * scales[channel].scale;
        const auto row = vertical_.first[y] + tap - vertical_.begin;
        const float* from = rows.data() + (row * channels + channel) * side_;
        for (std::size_t x = 0; x < side_; ++x) to[x] += weight * from[x];
      }
    }
}

}  // namespace troupe::engine
