#pragma once

#include <ATen/core/Tensor.h>

#include "engine/autograd/norm_sums.hpp"

namespace troupe::engine {

/// A batch norm's parameters and running statistics, [C] each.
struct normalization {
  at::Tensor weight = {};
  at::Tensor bias = {};
  at::Tensor running_mean = {};  ///< Undefined, as `running_var`: neither read nor updated.
  at::Tensor running_var = {};
  double momentum = 0;
  double eps = 0;
  bool training = false;  ///< Normalise with the input's own statistics.
  /// In training: with those of all inputs that are summed by it; null: with the input's own.
  norm_sums* together = nullptr;
};

/// at::batch_norm, recorded by autograd.
///
/// In training on a CPU, images in channels_last of f32 or bf16 with everything else in f32 go
/// through kernels of our own, which read memory fewer times than ATen's: sums are rounded
/// differently, but are the same bits whatever the number of threads. The backward cannot be
/// differentiated again. Everything else goes through ATen's operators. Errors are torch's
/// exceptions.
///
/// Inputs that are normalized together all go through our kernels on a CPU, where they are of f32
/// or bf16, and through `normalize_together` elsewhere. The backward sums by what is
/// `current_norm_sums` on its thread. Gradients of weight and bias are the input's own part.
[[nodiscard]] at::Tensor normalize(const at::Tensor& input, const normalization& by);

/// relu(normalize(input)), or relu(normalize(input) + added) if `added` is defined; with our own
/// kernels in one pass, rounded once to the input's type.
[[nodiscard]] at::Tensor normalize_relu(const at::Tensor& input, const normalization& by,
                                        const at::Tensor& added = {});

}  // namespace troupe::engine
