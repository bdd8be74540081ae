#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// What is summed when a batch norm spans several micro-batches.
enum class norm_sum : std::uint8_t {
  moments,    ///< [rows, mean of each channel .., sum of squared deviations of each channel ..]
  gradients,  ///< Numbers that are added one by one.
};

/// A micro-batch's part of such a sum, or the sum of several.
using norm_part = std::vector<double>;

/// Which sum of a step: the one that is so many in an action on a group (see norm_groups).
struct norm_place {
  step_key step;
  bool backward = false;
  std::uint32_t chunk = 0;
  std::uint32_t group = 0;
  std::uint32_t ordinal = 0;

  auto operator<=>(const norm_place&) const = default;
};

/// "sum 3 of the backward of group 1 in step 2 of epoch 0"
[[nodiscard]] std::string to_string(const norm_place& at);

/// The part of both together; moments are merged as Chan, Golub and LeVeque do (1979). Both have
/// the same size, of moments an odd one.
[[nodiscard]] norm_part merge(norm_sum what, const norm_part& left, const norm_part& right);

/// The same; nothing is the part of no micro-batch.
[[nodiscard]] std::optional<norm_part> merge(norm_sum what, const std::optional<norm_part>& left,
                                             const std::optional<norm_part>& right);

/// Of all parts, in the order of tree.hpp. Not empty.
[[nodiscard]] std::optional<norm_part> merge_all(norm_sum what,
                                                 std::vector<std::optional<norm_part>> parts);

}  // namespace troupe::engine
