#pragma once

#include <caf/actor_system.hpp>

#include "actors/interfaces.hpp"
#include "engine/step/step_coordinator_core.hpp"

namespace troupe::actors {

/// Spawns the coordinator of a run's training steps. It is declared cheap (see declare_cheap).
[[nodiscard]] step_coordinator_actor spawn_step_coordinator(
    caf::actor_system& system, const engine::step_coordinator_rules& rules);

}  // namespace troupe::actors
