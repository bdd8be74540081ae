#pragma once

#include "engine/stage/gradients.hpp"

namespace troupe::engine {

/// Unscales the gradients of a loss that was multiplied by `scale`, and checks that they are
/// finite: in one pass over memory on the CPU; on a device it waits for each gradient. A gradient
/// that nobody else holds is written in place, others are replaced. If the scale is a power of two,
/// only what underflows is rounded. Returns whether all are finite.
[[nodiscard]] bool unscale(step_gradients& gradients, double scale);

/// Unscales gradients on a device in the same way, without checking them and without waiting for
/// it.
void divide_there(step_gradients& gradients, double scale);

}  // namespace troupe::engine
