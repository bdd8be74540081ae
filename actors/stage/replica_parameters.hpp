#pragma once

#include "actors/stage/state/stage_state.hpp"

/// Where each replica of a stage updates the parameters that it owns, and all get the others': a
/// part of the stage's shell (stage_state.hpp).
namespace troupe::actors {

/// The own parameters are updated: sends them to the other replicas, and ends the step when theirs
/// are here.
void share_parameters(stage_pointer self, const engine::step_key& key);

void on_replica_parameters(stage_pointer self, const replica_parameters& from);
void on_replicas_gathered(stage_pointer self, const replicas_gathered& what);

}  // namespace troupe::actors
