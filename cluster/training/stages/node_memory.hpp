#pragma once

#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/pipeline.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/partition/stage_memory.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Before the stages are built: whether the stages of each node together fit into the memory that
/// it has left, within its control group. They take their weights, gradients and optimizer state at
/// least, which a node with one stage leaves to that stage to check. What they take with
/// activations is predicted as `troupe check` does (see predict_memory), which runs each layer
/// forward once here; a node that has less is warned of. `orders`: of each stage. Errors:
/// bad_config naming the node, its stages, both amounts, the limit and what to do.
[[nodiscard]] result<void> check_memory(node_group& group, actors::requester& ask,
                                        const planned_run& of,
                                        const std::vector<actors::build_stage>& orders);

/// What the stages of one replica are predicted to take, for a report of what those on devices did:
/// where the run is predicted anyway (--predict and what is chosen by it), or its stages are placed
/// by their memory. Empty: no stage is on a device, or it is not predicted.
[[nodiscard]] std::vector<engine::stage_memory> needs_to_tell(
    const planned_run& of, const std::vector<actors::build_stage>& orders);

}  // namespace troupe::cluster
