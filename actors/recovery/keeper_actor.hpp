#pragma once

#include <caf/actor_system.hpp>
#include <memory>

#include "actors/interfaces.hpp"
#include "actors/recovery/kept_stages.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {

/// Spawns the actor that keeps versions of stages in this process's memory. It has a thread of its
/// own, in which it computes versions of stages that send it their updates, with optimizers that
/// `known` has. `kept`: what it keeps, and had before; nobody else may look at its versions while
/// the actor lives. Throws std::system_error where no thread can be started.
[[nodiscard]] keeper_actor spawn_keeper(
    caf::actor_system& system, optimizers::registry known,
    std::shared_ptr<kept_stages> kept = std::make_shared<kept_stages>());

}  // namespace troupe::actors
