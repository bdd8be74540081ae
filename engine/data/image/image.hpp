#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// A decoded image: eight bits a channel.
struct rgb_image {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3]
};

/// What is refused before anything is decoded: larger images are damage or an attack.
inline constexpr std::int64_t most_image_side = 32768;
inline constexpr std::int64_t most_image_pixels = std::int64_t{1} << 27;
inline constexpr std::size_t most_image_file_bytes = std::size_t{1} << 28;

/// Decodes a JPEG or PNG file, told apart by its first bytes whatever its name says. Grey, CMYK,
/// YCCK, palette, 16-bit and transparent images become plain RGB; transparency and gamma are
/// ignored. An image that lacks pixels is an error, not a half grey picture. A JPEG much larger
/// than `side` pixels on its shorter side may come at 1/2, 1/4 or 1/8 of its size, at least twice
/// `side`: that decodes several times faster. Errors: bad_data, without the file's name. Any
/// thread.
[[nodiscard]] result<rgb_image> decode_image(std::span<const std::byte> file, std::int64_t side);

[[nodiscard]] result<rgb_image> decode_jpeg(std::span<const std::byte> file, std::int64_t side);
[[nodiscard]] result<rgb_image> decode_png(std::span<const std::byte> file);

/// bad_data where a width and height break the limits above.
[[nodiscard]] result<void> check_image_size(std::uint64_t width, std::uint64_t height);

}  // namespace troupe::engine
