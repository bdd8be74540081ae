#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace troupe::testing {

using colour = std::array<std::uint8_t, 3>;

/// How a test image is stored. Every image is of one colour, so what a reader made of it shows.
struct jpeg_kind {
  int width = 64;
  int height = 48;
  enum { grey, rgb, cmyk, adobe_cmyk, ycck } colours = rgb;
  bool progressive = false;
};
[[nodiscard]] std::string jpeg_bytes(colour fill, const jpeg_kind& kind = {});

struct png_kind {
  int width = 64;
  int height = 48;
  enum { grey, rgb, rgba, palette } colours = rgb;
  int bits = 8;
  bool interlaced = false;
};
[[nodiscard]] std::string png_bytes(colour fill, const png_kind& kind = {});

}  // namespace troupe::testing
