#pragma once

#include "actors/stage/stage_state.hpp"

/// The losses of a step, which a device keeps until the step's actions are done: a part of the
/// stage's shell (stage_state.hpp).
namespace troupe::actors {

/// Has the work thread bring the step's losses from the device, and say so by `losses_known`;
/// false: there are none, they are known.
[[nodiscard]] bool fetch_losses(stage_pointer self, const engine::step_key& key);

/// Adds a loss of the step to its report. Errors: those of the core, for one that is not finite.
[[nodiscard]] result<void> add_loss(stage_pointer self, announced_step& step,
                                    const engine::microbatch_loss& of);

}  // namespace troupe::actors
