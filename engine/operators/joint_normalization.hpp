#pragma once

#include <ATen/core/Tensor.h>

#include "engine/operators/normalization.hpp"

namespace troupe::engine {

/// Batch norm over several micro-batches, `by.together`, by ATen's operators on the input's device:
/// what `normalize` does in training where the input is not on the CPU. [N, C, ..] of f32, bf16 or
/// fp16, with parameters and statistics of f32; shape, type and layout kept.
///
/// The device's current stream makes the input's part of each sum, 2 numbers a channel in f32, and
/// the calling thread waits for one event, that of their copy to pinned memory. The sum itself is
/// made on the host in f64 (norm_parts.hpp), and its result copied back without a wait. So there is
/// one wait for an event in the forward and one in the backward, none for a stream or device. The
/// backward cannot be differentiated again. Errors are torch's exceptions.
[[nodiscard]] at::Tensor normalize_together(const at::Tensor& input, const normalization& by);

}  // namespace troupe::engine
