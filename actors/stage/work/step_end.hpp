#pragma once

#include "actors/stage/state/stage_state.hpp"

/// Carries out what a stage's `engine::step_end_core` says, on the work thread, by the optimizer,
/// and with the run's coordinator.
namespace troupe::actors {

/// Follows the core's effects, or fails the steps under way.
void end_step(stage_pointer self, const result<engine::step_end_effects>& effects);

/// Sends the gradient of a tied weight to the stage at its other end.
void post_tie(stage_pointer self, const sent_tie& what);

void on_gradients_ready(stage_pointer self, const gradients_ready& from);
void on_tied_gradient(stage_pointer self, const tied_gradient& from);
void on_step_undone(stage_pointer self, const step_undone& what);

}  // namespace troupe::actors
