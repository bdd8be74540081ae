#pragma once

#include "actors/stage/state/stage_state.hpp"
#include "engine/step/stage_core.hpp"

/// Carries out what a stage's `engine::stage_core` says: for the sources of this folder.
namespace troupe::actors {

/// Follows the core's effects, or fails the steps under way.
void perform_effects(stage_pointer self, const result<engine::stage_effects>& effects);

/// Hands an action's output to the neighbour that waits for it.
void perform(stage_pointer self, const engine::send_output& what);
/// Lets whoever sent a micro-batch send another.
void perform(stage_pointer self, const engine::grant_credit& what);

}  // namespace troupe::actors
