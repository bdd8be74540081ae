#pragma once

#include <caf/actor_registry.hpp>
#include <caf/actor_system.hpp>
#include <caf/spawn_options.hpp>
#include <string>
#include <system_error>
#include <utility>

namespace troupe::actors {

/// Spawns an actor that has a thread of its own. Throws std::system_error, naming what the actor is
/// for, where none can be started. CAF has counted actor and thread by then and ends neither: a
/// system would wait for them at its own end.
template <class... Arguments>
auto spawn_detached(caf::actor_system& system, const std::string& purpose,
                    Arguments&&... arguments) try {
  return system.spawn<caf::detached>(std::forward<Arguments>(arguments)...);
} catch (const std::system_error& refused) {
  system.registry().dec_running();
  system.dec_detached_threads();
  throw std::system_error(refused.code(), "no thread can be started for " + purpose);
}

}  // namespace troupe::actors
