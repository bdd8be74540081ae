#pragma once

#include <caf/actor_control_block.hpp>

namespace caf {
class abstract_actor;
}

namespace troupe::actors {

/// Declares that whatever `actor` does with a message takes microseconds and waits for nothing.
/// What comes to it from other processes is then handled in the thread of the link that brings it,
/// which spares two changes of thread a request; messages of its own process still reach it through
/// the scheduler, and there is one thread at a time for it as ever. That thread also judges who is
/// alive, so an actor that is not cheap after all holds up its whole node: it is said, and the
/// scheduler runs it from then on (see `arrivals`). A handler must not wait for a future, and needs
/// no lock against itself. Ends with the actor. Safe from any thread. Returns false, and changes
/// nothing, where the table is full (about 1,000 actors a process).
bool declare_cheap(const caf::strong_actor_ptr& actor);

/// Takes that back.
void declare_costly(const caf::abstract_actor& actor) noexcept;

/// Safe from any thread; takes no lock.
[[nodiscard]] bool is_cheap(const caf::abstract_actor& actor) noexcept;

}  // namespace troupe::actors
