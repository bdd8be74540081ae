#pragma once

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// Stochastic gradient descent as torch.optim.SGD has it, to the bit. Options: lr, momentum,
/// dampening, weight_decay, nesterov, maximize. State: "momentum_buffer", there once momentum is
/// used; a parameter's first buffer is a copy of its first gradient (with weight decay added).
///
/// f32 and f64 tensors on the CPU take one pass over memory in the calling thread; a gradient or
/// buffer with another layout than its parameter's is brought to it first. Other tensors go through
/// ATen's operators. The bits are those of ATen on a CPU with FMA (any since 2013), on every CPU.
[[nodiscard]] optimizer sgd();

}  // namespace troupe::optimizers
