#pragma once

#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The checks of [cluster], [[node]] and what lies on nodes, a part of `errors_together`. Errors
/// begin with the setting to change.

/// Takes the scheduler's hosts as nodes where the files leave them open.
[[nodiscard]] result<void> check_scheduler(draft& whole, const registries& known);

/// How the stage processes are started fits the nodes and the link.
[[nodiscard]] result<void> check_cluster(draft& whole, const registries& known);

/// Each node by itself, and that no two share a name.
[[nodiscard]] std::vector<error> check_nodes(draft& whole, const registries& known);

/// The stages find places on the nodes.
[[nodiscard]] std::vector<error> check_places(draft& whole, const registries& known);

/// The node that is to read the data exists, and has a stage.
[[nodiscard]] result<void> check_data_node(draft& whole, const registries& known);

}  // namespace troupe::cluster
