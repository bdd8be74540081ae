#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::optimizers {

/// A copy of a tensor on the CPU, of the same strides where it lies in one run of memory; shares
/// nothing with it. A large one is written past the caches: a stage's state is copied while the
/// stage computes, and the copy is read only after a loss.
[[nodiscard]] at::Tensor copy_past_caches(const at::Tensor& tensor);

}  // namespace troupe::optimizers
