#pragma once

#include "actors/messages/common.hpp"
#include "actors/stage/stage_state.hpp"

namespace troupe::actors {

/// Takes the stage's place among the others: its neighbours, and all that the end of its steps
/// depends on. What it was connected to before is forgotten. Errors: bad_config for a place that
/// does not fit, or while a step is under way.
[[nodiscard]] caf::result<acknowledged> on_connect(stage_pointer self, const connect_stage& to);

}  // namespace troupe::actors
