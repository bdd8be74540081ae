#include "engine/parameter_server/placement.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <numeric>

namespace troupe::engine {

std::vector<std::uint32_t> place_parameters(std::span<const std::uint64_t> bytes,
                                            std::uint32_t shards) {
  assert(shards >= 1);
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return bytes[a] > bytes[b]; });
  std::vector<std::uint64_t> load(shards);
  std::vector<std::uint32_t> owner(bytes.size());
  for (const auto parameter : order) {
    const auto least = std::ranges::min_element(load) - load.begin();
    owner[parameter] = static_cast<std::uint32_t>(least);
    load[static_cast<std::size_t>(least)] += bytes[parameter];
  }
  return owner;
}

std::uint32_t count_pieces(std::uint64_t bytes, std::uint64_t total, std::uint32_t shards) {
  assert(shards >= 1);
  const std::uint64_t share = std::max<std::uint64_t>(1, total / shards);
  const std::uint64_t pieces = (bytes + share - 1) / share;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(pieces, 1, shards));
}

}  // namespace troupe::engine
