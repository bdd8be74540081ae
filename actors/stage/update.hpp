#pragma once

#include "actors/messages/stage.hpp"
#include "actors/stage/stage_state.hpp"

/// The end of a training step, from its last backward to the optimizer's answer: gradients are
/// summed, settled with those of tied weights, looked through, judged, and applied or left out.
namespace troupe::actors {

/// The step's arithmetic is over: sums its gradients, chunk by chunk.
void sum_gradients(stage_pointer self, const engine::step_key& key);

void on_gradients_ready(stage_pointer self, const gradients_ready& from);
void on_tied_gradient(stage_pointer self, const tied_gradient& from);
void on_step_undone(stage_pointer self, const step_undone& what);

}  // namespace troupe::actors
