#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace troupe::engine {

/// The mean of tensors of one shape: added up in their order, then divided by `count`, in the
/// dtype of the result, each element in one pass over memory. Inputs have that dtype or are bf16.
/// One tensor of the right dtype and a count of 1 is returned as it is.
[[nodiscard]] at::Tensor mean_of(std::span<const at::Tensor> tensors, std::size_t count,
                                 at::ScalarType dtype);

}  // namespace troupe::engine
