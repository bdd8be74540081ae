#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>

namespace troupe::engine {

/// Items that one IDX file may hold.
inline constexpr std::uint32_t most_idx_items = 1 << 20;

/// What an IDX file of unsigned bytes holds.
struct idx_header {
  std::uint32_t count = 0;  ///< 1 to `most_idx_items`.
  std::size_t bytes = 0;    ///< Of all items.
};

/// The size of the header of an array with a count and `inner` further dimensions.
[[nodiscard]] constexpr std::size_t idx_header_bytes(std::size_t inner) {
  return 4 + 4 * (1 + inner);
}

/// Reads 0, 0, 8 (unsigned bytes), the number of dimensions and their sizes, which after the count
/// must be `inner`. Errors: the rest of a sentence that begins with the file's name.
[[nodiscard]] tl::expected<idx_header, std::string> parse_idx_header(
    std::span<const std::byte> bytes, std::span<const std::uint32_t> inner);

}  // namespace troupe::engine
