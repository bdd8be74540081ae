#pragma once

#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/membership/node_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Says which nodes the stages are on, and what carries what they send each other.
void tell_edges(node_group& group, const placement_tables& config, const link_config& link);

/// Of each stage's place: whether its process, as it is now, lends the versions of its stage to
/// this one instead of copying them. Those of a device have been copied to memory that is not lent.
/// `are_whole`: see are_lent_whole; without that none does.
[[nodiscard]] std::vector<bool> lends_to_trainer(node_group& group, const placement_tables& config,
                                                 const link_config& link, bool are_whole);

/// Before the first step of a run over hosts: where a stage listens, no other machine does. Errors:
/// see check_addresses.
[[nodiscard]] result<void> check_listening(node_group& group, const placement_tables& config);

}  // namespace troupe::cluster
