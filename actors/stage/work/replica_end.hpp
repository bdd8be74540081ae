#pragma once

#include "actors/stage/state/stage_state.hpp"

/// Carries out what a stage's `engine::all_reduce_core` says: buckets of gradients and their sums
/// go to the same stage of the other replicas, and a thread of its own adds; or a port of the
/// replicas' devices sums them.
namespace troupe::actors {

/// For the modules, by chunk: hand each own gradient that is final to the stage. Null where there
/// are no other replicas.
[[nodiscard]] std::vector<engine::gradient_taker> takers_of(stage_pointer self,
                                                            const engine::step_key& key);

/// For the modules: where gradients are made that replicas in other processes of this machine read
/// (see lendable_tensors). Empty where there are none, or links copy all tensors.
[[nodiscard]] engine::gradient_room room_of_gradients(stage_pointer self);

/// All own gradients of the step are there: the sum over replicas is to end.
void sum_over_replicas(stage_pointer self, const engine::step_key& key);

void on_gradient_final(stage_pointer self, const gradient_final& what);
void on_replica_gradients(stage_pointer self, const replica_gradients& from);
void on_replica_statistics(stage_pointer self, const replica_statistics& from);
void on_replicas_added(stage_pointer self, const replicas_added& what);

/// The own parameters are updated: sends them to the other replicas, and ends the step when theirs
/// are here (replica_parameters.cpp).
void share_parameters(stage_pointer self, const engine::step_key& key);

void on_replica_parameters(stage_pointer self, const replica_parameters& from);
void on_replicas_gathered(stage_pointer self, const replicas_gathered& what);

void on_norm_given(stage_pointer self, const norm_given& what);
void on_replica_norm(stage_pointer self, const replica_norm& from);
void on_replica_down(stage_pointer self, const caf::actor_addr& whose);

}  // namespace troupe::actors
