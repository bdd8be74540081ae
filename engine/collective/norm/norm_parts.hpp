#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::engine {

/// What is summed when a batch norm spans several micro-batches.
enum class norm_sum : std::uint8_t {
  moments,    ///< [rows, mean of each channel .., sum of squared deviations of each channel ..]
  gradients,  ///< Numbers that are added one by one.
};

/// A micro-batch's part of such a sum, or the sum of several.
using norm_part = std::vector<double>;

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
