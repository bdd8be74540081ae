#pragma once

#include <atomic>
#include <memory>

#include "cluster/launch/interrupt.hpp"
#include "cluster/membership/worker_group.hpp"

namespace troupe::cluster {

/// What interrupts mean to a trainer: the first sets `stop`, the second kills the workers, Ctrl-Z
/// stops them with it. `stop` outlives the guard; the workers are shared, so that a signal finds
/// them as long as it is handled. Errors: as interrupt_guard::install.
[[nodiscard]] result<interrupt_guard> guard_run(std::atomic<bool>& stop,
                                                const std::shared_ptr<workers>& all);

}  // namespace troupe::cluster
