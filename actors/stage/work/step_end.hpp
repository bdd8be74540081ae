#pragma once

#include "actors/stage/state/stage_state.hpp"

/// Carries out what a stage's `engine::step_end_core` says, on the work thread, by the optimizer,
/// and with the run's coordinator.
namespace troupe::actors {

/// Steps end from now on as the stage's new place asks.
void couple(stage_state& state, const connect_stage& to);

/// Sends the gradient of a tied weight to the stage at its other end.
void post_tie(stage_pointer self, const sent_tie& what);

void on_gradients_ready(stage_pointer self, const gradients_ready& from);
void on_tied_gradient(stage_pointer self, const tied_gradient& from);
void on_step_undone(stage_pointer self, const step_undone& what);

}  // namespace troupe::actors
