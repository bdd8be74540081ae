#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/stage/state/stage_state.hpp"

namespace troupe::actors {

/// Has the stage and its optimizer become what a keeper has of one, between steps: a part of the
/// stage's shell (stage_state.hpp).
[[nodiscard]] caf::result<acknowledged> on_adopt_version(stage_pointer self,
                                                         const adopt_version& what);

}  // namespace troupe::actors
