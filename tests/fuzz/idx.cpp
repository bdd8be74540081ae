// The header of IDX files.
#include <array>

#include "engine/data/idx_header.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

constexpr std::array<std::uint32_t, 2> sides{28, 28};

}  // namespace

std::vector<std::string> seeds() {
  using namespace std::string_literals;
  return {"\0\0\x08\x03\0\0\0\x05\0\0\0\x1c\0\0\0\x1c"s, "\0\0\x08\x01\0\0\xea\x60"s};
}

void run(std::span<const std::byte> input) {
  for (const auto inner :
       {std::span<const std::uint32_t>(sides), std::span<const std::uint32_t>()}) {
    const auto header = engine::parse_idx_header(input, inner);
    if (!header) {
      require(!header.error().empty(), "a refusal says why");
      continue;
    }
    require(header->count > 0 && header->count <= engine::most_idx_items, "the count is bounded");
    require(header->bytes == header->count * (inner.empty() ? 1 : 784), "so are the bytes");
  }
}

}  // namespace troupe::fuzz
