#pragma once

#include <cstdint>

namespace troupe::engine {

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
/// Our own, because the standard library's shuffles and distributions differ between platforms.
class splitmix64 {
 public:
  explicit constexpr splitmix64(std::uint64_t state) : state_(state) {}

  constexpr std::uint64_t next() { return mix(state_ += step); }

  /// Uniform in [0, bound); `bound` at least 1. Draws again where a remainder would be biased.
  constexpr std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t drawn = next();
    while (drawn < uneven) drawn = next();
    return drawn % bound;
  }

  /// The seed of an independent stream, for instance of one epoch or one image.
  static constexpr std::uint64_t combine(std::uint64_t seed, std::uint64_t stream) {
    return mix(mix(seed + step) ^ (stream + step));
  }

  /// A word of which each bit depends on each bit of `z`.
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  static constexpr std::uint64_t step = 0x9e3779b97f4a7c15;

  std::uint64_t state_;
};

}  // namespace troupe::engine
