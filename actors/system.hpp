#pragma once

#include <caf/actor_system_config.hpp>
#include <cstddef>

#include "messages/base/error.hpp"

namespace troupe::actors {

/// CAF as Troupe runs it: the `sharing` scheduler (the default one sleeps for a while before it
/// looks for work from outside, which costs a remote request ten times its latency) on two threads,
/// for handlers are short and all arithmetic has threads of its own.
struct system_config : caf::actor_system_config {
  system_config();
};

/// Whether this process may start the threads that a node needs, tried by starting as many. To be
/// asked before an actor system is made: CAF ends the process where it gets none. `nodes`: of the
/// run, for the limit that an error says would do. Errors: io_failed.
[[nodiscard]] result<void> check_threads(std::size_t nodes);

}  // namespace troupe::actors
