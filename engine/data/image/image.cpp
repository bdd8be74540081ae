#include "engine/data/image/image.hpp"

#include <string>
#include <string_view>

namespace troupe::engine {

result<void> check_image_size(std::uint64_t width, std::uint64_t height) {
  constexpr auto side = static_cast<std::uint64_t>(most_image_side);
  constexpr auto pixels = static_cast<std::uint64_t>(most_image_pixels);
  if (width >= 1 && height >= 1 && width <= side && height <= side && width * height <= pixels)
    return {};
  return fail(errc::bad_data, "it is " + std::to_string(width) + "x" + std::to_string(height) +
                                  " pixels; allowed are 1 to " + std::to_string(side) +
                                  " a side and " + std::to_string(pixels) + " in all");
}

result<rgb_image> decode_image(std::span<const std::byte> file, std::int64_t side) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()), file.size());
  if (start.starts_with("\xff\xd8\xff")) return decode_jpeg(file, side);
  if (start.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(file);
  return fail(errc::bad_data,
              start.empty() ? "it is empty" : "it is neither a JPEG nor a PNG file");
}

}  // namespace troupe::engine
