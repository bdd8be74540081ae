#pragma once

#include "actors/futures/requester.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/membership/node_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Before the stages of a run are built that is not launched on this machine alone: has the nodes
/// of stages that will speak to each other try to connect, in both directions, as either may be the
/// first to, and to send what fills the largest packets. Warns of what has had no answer for two
/// seconds. `wraps`: the last stage also speaks to the first. Errors: address_unavailable naming
/// both stages and nodes, the address, why, and what to do.
[[nodiscard]] result<void> check_reach(node_group& group, actors::requester& ask,
                                       const placement_tables& config, bool wraps);

}  // namespace troupe::cluster
