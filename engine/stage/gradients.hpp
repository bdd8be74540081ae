#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
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

/// The largest magnitude of each gradient that has elements: NaN if one of them is.
struct gradient_magnitudes {
  at::Tensor values = {};  // [n] f32, or f64 where a gradient is; undefined: there is none
  std::vector<std::size_t> places = {};  // of them among all gradients
};

/// Of gradients on one device, without waiting for it.
[[nodiscard]] gradient_magnitudes magnitudes_of(const step_gradients& gradients);

/// The first gradient on the CPU that is not finite, in words: "the gradient of fc.bias has a NaN";
/// empty: none. One pass over memory.
[[nodiscard]] std::string first_not_finite(const std::vector<named_tensor>& parameters,
                                           const step_gradients& gradients);
/// The same of gradients on a device: `values` are their magnitudes, once the host has them.
[[nodiscard]] std::string first_not_finite(const std::vector<named_tensor>& parameters,
                                           const std::vector<std::size_t>& places,
                                           const std::vector<double>& values);

}  // namespace troupe::engine
