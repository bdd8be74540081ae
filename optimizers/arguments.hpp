#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// A gradient of a step: nullptr when that parameter has none.
[[nodiscard]] inline const at::Tensor* given(const std::optional<at::Tensor>& gradient) {
  return gradient && gradient->defined() ? &*gradient : nullptr;
}

/// Whether every gradient fits its parameter. Errors: bad_config naming both counts, or the
/// parameter's index, its name if there are `names`, and both shapes, dtypes or devices.
[[nodiscard]] result<void> check_gradients(const std::string& optimizer,
                                           const std::vector<at::Tensor>& params,
                                           const gradient_list& gradients,
                                           const std::vector<std::string>& names = {});

/// Whether `kept` holds no other slots than `slots` and `scalars`, each with one entry per
/// parameter that is undefined, or fits it (slots), or is a single f64 on the CPU (scalars).
/// Errors: bad_config as above, naming the slot.
[[nodiscard]] result<void> check_state(const std::string& optimizer,
                                       const std::vector<at::Tensor>& params, const state& kept,
                                       const std::vector<std::string>& slots,
                                       const std::vector<std::string>& scalars = {});

}  // namespace troupe::optimizers
