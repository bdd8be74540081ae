#pragma once

#include "actors/stage/state/stage_state.hpp"
#include "engine/step/step_end_core.hpp"

namespace troupe::actors {

/// Carries out what a stage's `engine::step_end_core` says, or fails the steps under way.
void end_step(stage_pointer self, const result<engine::step_end_effects>& effects);

}  // namespace troupe::actors
