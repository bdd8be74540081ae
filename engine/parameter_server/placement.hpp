#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::engine {

/// Which shard owns each parameter: the largest first, each to the shard with the least bytes so
/// far (Graham's rule: no shard gets more than 4/3 of what the best placement could). Equal sizes
/// go in the order given, equal shards by their number, so every node finds the same. `shards` at
/// least 1.
[[nodiscard]] std::vector<std::uint32_t> place_parameters(std::span<const std::uint64_t> bytes,
                                                          std::uint32_t shards);

/// Into how many pieces to cut a parameter, so that none is more than a shard's share of `total`
/// bytes, or about that: at most one a shard. `shards` at least 1.
[[nodiscard]] std::uint32_t count_pieces(std::uint64_t bytes, std::uint64_t total,
                                         std::uint32_t shards);

}  // namespace troupe::engine
