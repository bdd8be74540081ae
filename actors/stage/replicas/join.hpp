#pragma once

#include "actors/stage/state/stage_state.hpp"

/// How a stage finds its other replicas, and the way to sum with them: a part of the stage's shell
/// (stage_state.hpp).
namespace troupe::actors {

/// By what this stage can sum with its replicas beside links.
[[nodiscard]] sum_offered offer_sum(stage_pointer self, const ask_sum_offer& asked);
[[nodiscard]] caf::result<replicas_invited> on_invite_replicas(stage_pointer self,
                                                               const invite_replicas& wanted);

/// Watches the other replicas' stages, begins to join their port where they have one, and makes the
/// thread that adds. Once the stage is connected. Errors: those of the port.
[[nodiscard]] result<void> join_replicas(stage_pointer self, const replica_group& group);

}  // namespace troupe::actors
