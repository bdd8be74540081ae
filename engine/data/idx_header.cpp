#include "engine/data/idx_header.hpp"

namespace troupe::engine {
namespace {

std::uint32_t big_endian(std::span<const std::byte, 4> bytes) {
  std::uint32_t out = 0;
  for (const std::byte each : bytes) out = out << 8 | std::to_integer<std::uint32_t>(each);
  return out;
}

}  // namespace

tl::expected<idx_header, std::string> parse_idx_header(std::span<const std::byte> bytes,
                                                       std::span<const std::uint32_t> inner) {
  using refusal = tl::unexpected<std::string>;
  if (bytes.size() < idx_header_bytes(inner.size())) return refusal("is truncated");
  const std::size_t dimensions = 1 + inner.size();
  if (big_endian(bytes.first<4>()) != 0x0800 + dimensions)
    return refusal("is no IDX file of bytes with " + std::to_string(dimensions) + " dimensions");
  idx_header out;
  out.count = big_endian(bytes.subspan<4, 4>());
  out.bytes = out.count;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    const auto size = big_endian(bytes.subspan(8 + 4 * i).first<4>());
    if (size != inner[i])
      return refusal("holds items of another size: " + std::to_string(size) + " instead of " +
                     std::to_string(inner[i]));
    out.bytes *= size;
  }
  if (out.count == 0 || out.count > most_idx_items)
    return refusal("holds " + std::to_string(out.count) + " items; allowed are 1 to " +
                   std::to_string(most_idx_items));
  return out;
}

}  // namespace troupe::engine
