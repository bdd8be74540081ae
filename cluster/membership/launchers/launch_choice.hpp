#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/membership/launchers/agent_launcher.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a run's nodes are started, and where its trainer listens for them.
struct launch_choice {
  std::unique_ptr<node_launcher> where;
  std::string listen;  ///< As of node_settings::listen.
};

/// How agents on a config's nodes would start its processes.
struct agent_plan {
  process_link link;
  std::string listen;  ///< As of node_settings::listen.
  agent_settings agents;
  /// Why a node cannot be reached, or does not reach us where the others do, by its place.
  std::map<std::size_t, error> unreached = {};
};

/// The tables that say how and where the processes of stages are started: views for a function's
/// parameter.
struct launch_tables : placement_tables {
  const link_config& link;
  const observe_config& observe;

  launch_tables(const trainer_config& config);
};

/// For stages that are called `names`; the config has nodes. Starts nothing. Errors: as of
/// choose_launcher, but for those of single nodes.
[[nodiscard]] result<agent_plan> plan_agents(const launch_tables& config,
                                             const std::vector<std::string>& names);

/// What a config says of the processes of its stages, which are called `names`: by an agent on each
/// [[node]], by nobody (`launch = "none"`: they are waited for), or as children of this process.
/// Agents have been started and answer when this returns. Errors: bad_config, address_unavailable
/// and io_failed, with node and host where it is one's.
[[nodiscard]] result<launch_choice> choose_launcher(const launch_tables& config,
                                                    const std::vector<std::string>& names);

/// Of a setting in seconds.
[[nodiscard]] std::chrono::milliseconds milliseconds_of(double seconds);

/// Nodes that somebody else starts; each one's name and where it is to join are logged. `build`:
/// what their program has to be, as of program_build.
[[nodiscard]] std::unique_ptr<node_launcher> make_awaited_nodes(process_link link,
                                                                std::string build);

/// Whether the trainer can listen there now, before others are asked to join it; empty: where no
/// other machine comes. Errors: address_unavailable naming the setting, the host and what to do.
[[nodiscard]] result<void> check_trainer_listens(const std::string& listen);

/// An address at which this process listens, as others are to name it: all addresses of a host
/// ("0.0.0.0") are found by the host's name.
[[nodiscard]] std::string address_for_others(const std::string& listening);

/// The command by which a process joins there as `name`.
[[nodiscard]] std::string how_to_join(const std::string& name, const std::string& listening);

/// What whoever starts stages has to know of where the trainer listens: that only processes of its
/// machine reach it; empty: others do too.
[[nodiscard]] std::string who_may_join(const std::string& listen);

}  // namespace troupe::cluster
