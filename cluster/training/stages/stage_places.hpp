#pragma once

#include "cluster/config/trainer_config.hpp"
#include "cluster/membership/node_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Says which nodes the stages are on, and what carries what they send each other.
void tell_edges(node_group& group, const trainer_config& config);

/// Before the first step of a run over hosts: where a stage listens, no other machine does. Errors:
/// see check_addresses.
[[nodiscard]] result<void> check_listening(node_group& group, const trainer_config& config);

}  // namespace troupe::cluster
