#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::engine {

/// Adds a gradient to a sum of the same shape, in place: the bits of `sum.add_(gradient)`. Where
/// the sum is of f32 and the gradient of bf16, and both lie on the CPU in the same layout, that is
/// one pass over memory, shared out among ATen's intra-op threads; ATen's operator makes a copy of
/// the gradient in f32 first. The sum must not be recorded by autograd. Torch's exceptions pass
/// through.
void add_in_place(at::Tensor& sum, const at::Tensor& gradient);

}  // namespace troupe::engine
