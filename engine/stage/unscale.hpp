#pragma once

#include "engine/stage/gradients.hpp"

namespace troupe::engine {

/// Divides the gradients of a loss that was multiplied by `scale`, and looks at each element on the
/// way: one pass over memory, or two on a device, where the host waits once. A gradient that nobody
/// else holds is written where it is, another one replaced. With a power of two only what
/// underflows is rounded. Returns whether all are finite.
[[nodiscard]] bool unscale(step_gradients& gradients, double scale);

}  // namespace troupe::engine
