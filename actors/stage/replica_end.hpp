#pragma once

#include "actors/stage/stage_state.hpp"

/// Carries out what a stage's `engine::all_reduce_core` says: parts and sums go to the same stage of
/// the other replicas, and the work thread adds.
namespace troupe::actors {

/// Begins the sum over replicas of the step's own gradients.
void sum_over_replicas(stage_pointer self, const engine::step_key& key);

void on_replica_gradients(stage_pointer self, const replica_gradients& from);
void on_replicas_added(stage_pointer self, const replicas_added& what);

}  // namespace troupe::actors
