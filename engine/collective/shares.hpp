#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::engine {

/// Pipelines of the same stages that a batch is shared out to.
inline constexpr std::uint32_t most_replicas = 64;

/// The half-open range [first, last).
struct share {
  std::size_t first = 0;
  std::size_t last = 0;

  [[nodiscard]] std::size_t size() const noexcept { return last - first; }
  bool operator==(const share&) const = default;
};

/// Which of a batch's micro-batches belong to part `index` of `parts`: shares differ by one at
/// most, and the first are filled first where there are fewer micro-batches than parts. Twice as
/// many parts halve each share: part i has what parts 2i and 2i + 1 of them have.
[[nodiscard]] share share_of_batch(std::uint32_t microbatches, std::uint32_t index,
                                   std::uint32_t parts);

/// How many of them each part has.
[[nodiscard]] std::vector<std::uint32_t> shares_of_batch(std::uint32_t microbatches,
                                                         std::uint32_t parts);

}  // namespace troupe::engine
