#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::optimizers {

/// Whether the tensor's elements lie in the CPU's memory as plain numbers, without gaps.
[[nodiscard]] bool is_plain(const at::Tensor& tensor);

/// Whether tensors of one shape have their elements in the same places.
[[nodiscard]] bool same_layout(const at::Tensor& left, const at::Tensor& right);

/// An uninitialised tensor of the parameter's shape, layout, dtype and device.
[[nodiscard]] at::Tensor like(const at::Tensor& param);

/// `tensor` itself, or if it is sparse the same numbers dense.
[[nodiscard]] at::Tensor strided(const at::Tensor& tensor);

/// `tensor` itself, or a copy in the parameter's layout.
[[nodiscard]] at::Tensor laid_out_as(const at::Tensor& param, const at::Tensor& tensor);

}  // namespace troupe::optimizers
