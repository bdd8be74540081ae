#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/membership/stage_node.hpp"
#include "cluster/training/saving/saving.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The nodes of a run, and what to do with them once they have joined.
struct node_run {
  std::unique_ptr<node_launcher> where;
  std::string listen;  ///< Of the trainer's node, as of node_settings::listen.
  std::vector<std::string> names;
  actors::progress_settings progress;
  std::function<result<void>(node_group&)> drive;
  std::size_t understudies = 0;
  message_adder own_messages = {};  ///< See registries.
  int invited = -1;                 ///< As of node_group::start.
};

/// When work counts as slow or hung.
[[nodiscard]] actors::progress_settings progress_of(const observe_config& observe,
                                                    const train_config& train);

/// Starts the nodes and drives them until the run is over or the user interrupts it. Leaves no
/// process behind, whatever happens. Errors: those of starting and driving, with the reason for the
/// loss of a node; what `drive` throws.
[[nodiscard]] result<run_end> run_nodes(node_run run, const checkpoint_config& kept,
                                        const cluster_config& cluster, run_control& control);

/// Serves as a node of another process's run, with the host that `spawn` makes and what a program
/// that knows `known` has of its own. Errors: as run_node.
[[nodiscard]] result<void> serve_as_node(const node_options& options, registries known,
                                         const host_spawner& spawn);

}  // namespace troupe::cluster
