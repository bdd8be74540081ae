#pragma once

#include "cluster/launch/start/zygote.hpp"

namespace troupe::cluster {

/// Whether this system lets a process make a copy of itself that is its parent's child.
[[nodiscard]] bool can_copy() noexcept;

/// What a zygote does: makes a copy for each order that comes from its parent. Returns in each
/// copy, which has started as its order says, with its command line; the zygote itself ends with
/// its parent.
[[nodiscard]] command_words copy_on_order(int socket);

}  // namespace troupe::cluster
