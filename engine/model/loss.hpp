#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "messages/base/error.hpp"
#include "messages/base/named_values.hpp"

namespace troupe::engine {

/// The mean loss over the samples of a micro-batch, from the outputs of the last layer and the
/// labels (for images [N, K] and [N] i64, for sequences [N, T, K] and [N, T]). Scalar f32, recorded
/// by autograd. Called by one thread of each process at a time; torch's exceptions pass through.
using loss_function =
    std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& labels)>;

/// Cross entropy of logits, computed in f32 whatever their type; labels are below K.
[[nodiscard]] at::Tensor cross_entropy_loss(const at::Tensor& logits, const at::Tensor& labels);

/// Mean squared error of scores against one-hot labels, in f32.
[[nodiscard]] at::Tensor mse_loss(const at::Tensor& scores, const at::Tensor& labels);

/// The losses that a run can name.
using loss_registry = named_values<loss_function>;

/// The built-in losses: cross-entropy, mse.
[[nodiscard]] loss_registry built_in_losses();

/// Errors: bad_config listing the known names.
[[nodiscard]] result<loss_function> find_loss(const loss_registry& known, const std::string& name);

/// How many rows of `logits` [N, K] or [N, T, K] have their largest entry at the label: [] i64, on
/// their device.
[[nodiscard]] at::Tensor rows_correct(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace troupe::engine
