#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>

#include "actors/interfaces.hpp"

namespace troupe::actors {

/// Spawns the actor that adds up the norm of the gradients of `stages` stages.
[[nodiscard]] norm_actor spawn_norm(caf::actor_system& system, std::uint32_t stages);

}  // namespace troupe::actors
