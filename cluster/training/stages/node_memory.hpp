#pragma once

#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/pipeline.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/prepared_run.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Before the stages are built: whether the stages of each node together fit into the memory that
/// it has left, within its control group. They take their weights, gradients and optimizer state at
/// least; warns of a node with so little more that activations may not fit. A node with one stage
/// is that stage's to check. `orders`: of each stage. Errors: bad_config naming the node, its
/// stages, both amounts, the limit and what to do.
[[nodiscard]] result<void> check_memory(node_group& group, actors::requester& ask,
                                        const application& program, const trainer_config& config,
                                        const prepared_run& run,
                                        const std::vector<actors::build_stage>& orders);

}  // namespace troupe::cluster
