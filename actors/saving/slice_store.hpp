#pragma once

#include <caf/actor_system.hpp>

#include "actors/interfaces.hpp"
#include "engine/slices/slice_folder.hpp"

namespace troupe::actors {

/// Spawns the actor that keeps files of checkpoints in a folder, in a thread of its own, to which
/// the arithmetic of steps comes first. Throws std::system_error where no thread can be started.
[[nodiscard]] slice_store_actor spawn_slice_store(caf::actor_system& system,
                                                  engine::slice_folder folder);

}  // namespace troupe::actors
