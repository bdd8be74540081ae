#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::engine {

/// `input` [..., in] times `weight` [out, in] transposed, plus `bias` [out] unless that is
/// undefined: what at::linear gives, and its gradients, to the bit. The arithmetic is in the
/// input's type, or autocast's. Weight and bias are parameters, and leave their gradients to the
/// `weight_gradient_collector` of the thread that goes backward, if there is one. Errors are
/// torch's exceptions.
[[nodiscard]] at::Tensor linear_map(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias);

}  // namespace troupe::engine
