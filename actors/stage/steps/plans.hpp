#pragma once

#include "actors/messages/common.hpp"
#include "actors/stage/state/stage_state.hpp"

/// The plans that are announced to a stage, and which of them its runs name: a part of the stage's
/// shell (stage_state.hpp).
namespace troupe::actors {

/// Keeps a plan under its number. It comes from another process: it is checked here, and nowhere
/// after.
[[nodiscard]] caf::result<acknowledged> on_announce_plan(stage_pointer self,
                                                         const announce_plan& told);

/// What the stage is to do in a step: nothing where its replica has no micro-batch of it. Errors:
/// bad_config for a plan that was not announced, or does not fit the order.
[[nodiscard]] result<engine::shared_plan> plan_of(const stage_state& state, const run_stage& order);

}  // namespace troupe::actors
