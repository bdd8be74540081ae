#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/config/trainer_config.hpp"
#include "cluster/doctor/doctor.hpp"
#include "cluster/doctor/facts/facts.hpp"
#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/visits/node_visit.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"

namespace troupe::cluster::doctor {

/// A node, what it is to be asked, and what its listener has said.
struct visited {
  patient who;
  agent_host host;
  std::string wanted;  ///< Where the config has its processes listen; empty: nowhere in particular.
  requests::facts asked;
  requests::listen listen;
  std::optional<requests::data> data;  ///< That it is to read.
  /// The way to it; not valid where there is none to wait for.
  std::future<result<std::unique_ptr<node_visit>>> way;
  std::unique_ptr<node_visit> visit;  ///< Null: it was not reached.
  bool is_awaited = false;            ///< Somebody else starts it, and it may never come.
  bool is_seen = false;               ///< What can be learned of it is known.
  bool is_met_elsewhere = false;      ///< Something else listens for it, at `listener.address`.
  std::optional<requests::listen> listens_as;  ///< What it was told, if it was.
  edge_facts listener;                         ///< With an address where it listens.
};

/// What is to be examined, and how the processes connect.
struct tour {
  agent_plan plan;
  std::string transport;
  std::vector<std::size_t> places;                         ///< Of each stage, among `nodes`.
  std::vector<visited> nodes;                              ///< The trainer's machine first.
  std::vector<std::pair<std::size_t, std::size_t>> edges;  ///< Of nodes, to be probed.
};

/// What the trainer's machine is called; never as a node.
[[nodiscard]] std::string trainer_name(const cluster_config& cluster);

/// How a run's processes would be started. A run without nodes has its stages on the trainer's
/// machine, or where others start them. Errors: as of plan_agents.
[[nodiscard]] result<agent_plan> plan_of(const launch_tables& config);

/// Whether others start the processes of its stages, each of which is a node by itself.
[[nodiscard]] bool is_joined(const cluster_config& cluster, bool has_stages) noexcept;

/// More than the edges between the nodes of a plan can be, wherever its stages are placed.
[[nodiscard]] std::size_t most_edges(const pipeline_config& pipeline, std::size_t nodes);

/// Every node with what it needs and is asked, and the edges between them. `config`: placed by
/// memory, where that is known.
[[nodiscard]] tour prepare_tour(const trainer_config& config, agent_plan plan,
                                const run_needs& needs, const run_knowledge& program);

}  // namespace troupe::cluster::doctor
