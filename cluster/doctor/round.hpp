#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cluster/doctor/facts/facts.hpp"
#include "cluster/doctor/tour.hpp"

namespace troupe::cluster::doctor {

/// Open files of this process for each node that it visits.
inline constexpr std::uint64_t files_a_visit = 16;

using way_to_node = std::future<result<std::unique_ptr<node_visit>>>;

/// Begins to start an agent on the trainer's machine and on each node of a plan, in this order; no
/// way is valid to a node of which the plan knows that it cannot be reached. The futures wait when
/// they are destroyed. `trainer`: its machine's name. `examiners`: as of node_visit::open.
[[nodiscard]] std::vector<way_to_node> begin_to_reach(const agent_plan& plan,
                                                      const std::string& trainer,
                                                      std::size_t examiners);

/// Asks all nodes for their facts, and tries and measures the edges between them. A node that is
/// long in coming keeps nobody waiting: the others are examined meanwhile, and once more if it
/// comes. `begun`: when it was begun to reach them.
[[nodiscard]] std::vector<edge_facts> visit_all(tour& all,
                                                std::chrono::steady_clock::time_point begun);

/// Ends all visits, at once.
void end_visits(tour& all);

}  // namespace troupe::cluster::doctor
