#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/stage/state/stage_state.hpp"

/// What a stage does when a neighbour is lost and another stage repeats that one's last steps, and
/// when its feeder is lost: a part of the stage's shell (stage_state.hpp).
namespace troupe::actors {

/// All stages have done the steps before this one: no stage can need the evaluations among them.
void forget_evaluations(stage_pointer self, const engine::step_key& done_before);

[[nodiscard]] caf::result<acknowledged> on_replace_neighbour(stage_pointer self,
                                                             const replace_neighbour& what);

[[nodiscard]] caf::result<acknowledged> on_replace_feeder(stage_pointer self,
                                                          const replace_feeder& what);

}  // namespace troupe::actors
