#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/stage.hpp"
#include "actors/stage/state/stage_state.hpp"

/// The order of a stage's work. Its `engine::stage_core` is told of runs, and of what the work
/// thread has done: a part of the stage's shell (stage_state.hpp).
namespace troupe::actors {

/// Forgets all steps and plans: from now on steps are ordered as the stage's new place asks.
void reset_order(stage_state& state, const connect_stage& to);

[[nodiscard]] caf::result<stage_done> on_run(stage_pointer self, const run_stage& order);
/// Keeps an action's output, if a neighbour waits for it, until the core says to send it.
void on_output_ready(stage_pointer self, const output_ready& output);
void on_work_done(stage_pointer self, const work_done& outcome);
void on_losses_known(stage_pointer self, const losses_known& from);

}  // namespace troupe::actors
