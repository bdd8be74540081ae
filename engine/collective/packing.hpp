#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::engine {

/// Tensors that travel together, in as few pieces of memory as they have dtypes.
struct packed_tensors {
  std::vector<at::Tensor> flat;                  ///< [n] each, n a multiple of the ranks.
  std::vector<std::optional<at::Tensor>> views;  ///< Each tensor's place there.
};

/// Copies what a rank has to one summand; `like` gives each one's size, layout and dtype. What the
/// rank does not have becomes -0, which changes no bit of any sum. Each `flat` is filled up to a
/// multiple of `ranks` elements. On the current stream.
[[nodiscard]] packed_tensors pack_to_sum(const std::vector<std::optional<at::Tensor>>& parts,
                                         const std::vector<at::Tensor>& like, std::uint32_t ranks);

}  // namespace troupe::engine
