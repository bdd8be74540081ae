#pragma once

#include "actors/stage/state/stage_state.hpp"

/// The actions of a step on the work thread, and the losses that they give: a part of the stage's
/// shell (stage_state.hpp).
namespace troupe::actors {

/// Has the work thread do an action with what has arrived for it. Its output comes back as
/// `output_ready`, as soon as it is there, and its end as `work_done`.
void start_work(stage_pointer self, const engine::step_key& key, const engine::action& what);

/// Has the work thread bring an evaluation's losses from the device, which keeps them until the
/// step's actions are done, and say so by `losses_known`; false: there are none, they are known, or
/// come with the gradients of a training step.
[[nodiscard]] bool fetch_losses(stage_pointer self, const engine::step_key& key);

/// Adds losses of the step to its report. False: the core does not accept one that is not finite,
/// and the steps under way have failed.
[[nodiscard]] bool add_losses(stage_pointer self, announced_step& step,
                              const std::vector<engine::microbatch_loss>& of);

}  // namespace troupe::actors
