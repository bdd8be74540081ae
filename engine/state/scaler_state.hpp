#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "engine/step/loss_scaler.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The name under which a loss scaler stands beside the optimizers' state in a file.
inline constexpr std::string_view scaler_name = "optimizer.loss_scaler";

/// Scale and steps in a row, for a file: [2] f64.
[[nodiscard]] at::Tensor to_tensor(const loss_scaler& scaler);

/// `rules` with the scale and the steps that `to_tensor` kept. Errors: bad_data for what it cannot
/// have kept, or a scale out of the rules' range.
[[nodiscard]] result<loss_scaler> from_tensor(const at::Tensor& kept, loss_scaler rules);

}  // namespace troupe::engine
