#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

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

/// Whether ATen's kernels for a whole update take such a parameter, if there is one for the
/// algorithm: those for NVIDIA's GPUs read and write each element once.
[[nodiscard]] bool takes_whole_updates(const at::Tensor& param);

/// What those kernels want of a gradient or slot of each parameter, wherever it lies: the tensors
/// themselves, or copies in their parameters' layouts.
[[nodiscard]] std::vector<at::Tensor> all_laid_out_as(const std::vector<at::Tensor>& params,
                                                      std::vector<at::Tensor> tensors);

}  // namespace troupe::optimizers
