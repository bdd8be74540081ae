#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"

namespace troupe::engine {

/// A step's gradient of each parameter, in the parameters' order; nullopt where there is none.
using step_gradients = std::vector<std::optional<at::Tensor>>;

/// The sum of two gradients of one weight; the same bits whichever comes first.
[[nodiscard]] std::optional<at::Tensor> add_gradients(const std::optional<at::Tensor>& one,
                                                      const std::optional<at::Tensor>& other);

/// The sum of two lists, parameter by parameter.
[[nodiscard]] step_gradients add_each(const step_gradients& one, const step_gradients& other);

/// Gives both ends of each tie the sum of their gradients, where both are among `parameters`.
void sum_ties(const std::vector<named_tensor>& parameters, const std::vector<weight_tie>& ties,
              step_gradients& gradients);

/// Whether all are, of gradients on one device: the host waits for it once.
[[nodiscard]] bool all_finite(const step_gradients& gradients);

/// The first gradient that is not finite, in words: "the gradient of fc.bias has a NaN"; empty:
/// none. One pass over memory; on a device the host waits for one answer unless there is one.
[[nodiscard]] std::string first_not_finite(const std::vector<named_tensor>& parameters,
                                           const step_gradients& gradients);

}  // namespace troupe::engine
