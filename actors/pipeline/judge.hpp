#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>

#include "actors/interfaces.hpp"

namespace troupe::actors {

/// Spawns the judge of a pipeline of so many stages: a step is applied when none of them found a
/// gradient that is not finite.
[[nodiscard]] judge_actor spawn_judge(caf::actor_system& system, std::size_t stages);

}  // namespace troupe::actors
