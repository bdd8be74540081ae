#pragma once

#include "engine/stage/gradients.hpp"

namespace troupe::engine {

/// Divides the gradients of a loss that was multiplied by `scale`, and looks at each element on the
/// way: one pass over memory on the CPU; on a device it waits for each gradient. One that nobody
/// else holds is written where it is, another one replaced. With a power of two only what
/// underflows is rounded. Returns whether all are finite.
[[nodiscard]] bool unscale(step_gradients& gradients, double scale);

/// Divides gradients on a device in the same way, without looking at them or waiting for it.
void divide_there(step_gradients& gradients, double scale);

}  // namespace troupe::engine
