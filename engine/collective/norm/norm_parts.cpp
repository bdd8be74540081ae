#include "engine/collective/norm/norm_parts.hpp"

#include <cstddef>
#include <utility>

#include "engine/collective/tree.hpp"

namespace troupe::engine {

std::string to_string(const norm_place& at) {
  return "sum " + std::to_string(at.ordinal) + " of the " + (at.backward ? "backward" : "forward") +
         " of group " + std::to_string(at.group) +
         (at.chunk > 0 ? " of chunk " + std::to_string(at.chunk) : "") + " in " +
         to_string(at.step);
}

norm_part merge(norm_sum what, const norm_part& left, const norm_part& right) {
  norm_part both(left.size());
  if (what == norm_sum::gradients) {
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = left[i] + right[i];
    return both;
  }
  const auto channels = (left.size() - 1) / 2;
  const double rows = both[0] = left[0] + right[0];
  for (std::size_t c = 1; c <= channels; ++c) {
    const double apart = right[c] - left[c];
    both[c] = left[c] + apart * (right[0] / rows);
    both[channels + c] =
        left[channels + c] + right[channels + c] + apart * apart * (left[0] * (right[0] / rows));
  }
  return both;
}

std::optional<norm_part> merge(norm_sum what, const std::optional<norm_part>& left,
                               const std::optional<norm_part>& right) {
  if (!left) return right;
  if (!right) return left;
  return merge(what, *left, *right);
}

std::optional<norm_part> merge_all(norm_sum what, std::vector<std::optional<norm_part>> parts) {
  return tree_sum(std::move(parts),
                  [what](const auto& left, const auto& right) { return merge(what, left, right); });
}

}  // namespace troupe::engine
