#pragma once

#include <caf/actor_system.hpp>
#include <string>

#include "actors/interfaces.hpp"

namespace troupe::actors {

/// Spawns the actor that writes a stage's files of checkpoints, in a thread of its own, to which
/// the arithmetic of steps comes first. `stage`: for errors. Throws std::system_error where no
/// thread can be started.
[[nodiscard]] slice_writer_actor spawn_slice_writer(caf::actor_system& system, std::string stage);

}  // namespace troupe::actors
