#pragma once

#include <caf/actor_control_block.hpp>

namespace caf {
class abstract_actor;
}

namespace troupe::actors {

/// Declares that `actor` handles any message within microseconds and without waiting. Messages from
/// other processes are then handled in the thread of the link that brings them, which saves two
/// changes of thread per request; messages of its own process still reach it through the scheduler,
/// and as always one thread at a time runs it. The link's thread also decides which nodes are
/// alive, so an actor that is not cheap after all delays its whole node: a warning names it, and
/// the scheduler runs it from then on (see `arrivals`). A handler must not wait for a future, and
/// needs no lock against itself. The declaration ends with the actor. Safe from any thread. Returns
/// false, and changes nothing, if the table is full (about 1,000 actors per process).
bool declare_cheap(const caf::strong_actor_ptr& actor);

/// Takes that back.
void declare_costly(const caf::abstract_actor& actor) noexcept;

/// Safe from any thread; takes no lock.
[[nodiscard]] bool is_cheap(const caf::abstract_actor& actor) noexcept;

}  // namespace troupe::actors
