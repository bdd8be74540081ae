#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace troupe::engine {

/// The sum of all parts in a fixed binary tree: neighbours are added in pairs, then their sums, and
/// so on; an odd one out waits for the next level. A group of 2^n parts that begins at a multiple
/// of 2^n is a tree of its own: who adds such groups first, and then their sums, gets the same
/// bits. `parts` is not empty. `add(left, right)` gives the sum of two.
template <class Part, class Add>
[[nodiscard]] Part tree_sum(std::vector<Part> parts, const Add& add) {
  while (parts.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < parts.size(); i += 2, ++kept) {
      auto sum = i + 1 < parts.size() ? add(parts[i], parts[i + 1]) : std::move(parts[i]);
      parts[kept] = std::move(sum);
    }
    parts.resize(kept);
  }
  return std::move(parts.front());
}

/// Whether equal shares of `parts` among `owners` are trees of their own, so that who owns them
/// changes no bit of the sum.
[[nodiscard]] constexpr bool is_tree_of_shares(std::size_t parts, std::size_t owners) {
  if (owners == 0 || parts % owners != 0) return false;
  const auto share = parts / owners;
  return owners == 1 || (share & (share - 1)) == 0;
}

}  // namespace troupe::engine
