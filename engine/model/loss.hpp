#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/loss_kind.hpp"

namespace troupe::engine {

/// The mean over a micro-batch, computed in f32 whatever the logits' type. Scalar f32, recorded by
/// autograd. `logits` [N, K], `labels` [N] i64 below K; or [N, T, K] and [N, T].
[[nodiscard]] at::Tensor mean_loss(loss_kind kind, const at::Tensor& logits,
                                   const at::Tensor& labels);

/// How many rows of `logits` [N, K] or [N, T, K] have their largest entry at the label.
[[nodiscard]] std::int64_t count_correct(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace troupe::engine
