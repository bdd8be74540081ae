#pragma once

#include <caf/actor_system.hpp>

#include "actors/interfaces.hpp"

namespace troupe::actors {

/// Spawns the actor that keeps versions of stages in this process's memory.
[[nodiscard]] keeper_actor spawn_keeper(caf::actor_system& system);

}  // namespace troupe::actors
