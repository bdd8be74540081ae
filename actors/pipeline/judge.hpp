#pragma once

#include <caf/actor_system.hpp>

#include "actors/interfaces.hpp"
#include "actors/pipeline/judge_core.hpp"

namespace troupe::actors {

/// Spawns the judge of a pipeline.
[[nodiscard]] judge_actor spawn_judge(caf::actor_system& system, judge_rules rules);

}  // namespace troupe::actors
