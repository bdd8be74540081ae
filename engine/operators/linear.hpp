#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace troupe::engine {

class weight_copies;

/// `input` [..., in] times `weight` [out, in] transposed, plus `bias` [out] unless that is
/// undefined: what at::linear gives, and its gradients, on the CPU to the bit. The arithmetic is in
/// the input's type, or autocast's. On a device in 16 bits the result is a view of a matrix with
/// rows of whole units of 16 bytes, without which a GPU has no fast kernels: columns of zero
/// weights stand behind those that were asked for. Weight and bias are parameters, and leave their
/// gradients to the `weight_gradient_collector` of the thread that goes backward, if there is one.
/// `copies`, of this weight: the cast weight is made once for all micro-batches that use it
/// unchanged; null: each forward makes its own. Errors are torch's exceptions.
[[nodiscard]] at::Tensor linear_map(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias,
                                    const std::shared_ptr<weight_copies>& copies = nullptr);

}  // namespace troupe::engine
