#pragma once

#include <caf/actor_system_config.hpp>

namespace troupe::actors {

/// CAF as Troupe runs it: the `sharing` scheduler (the default one naps on work that comes from
/// outside, which costs a remote request ten times its latency) on two threads, for handlers are
/// short and all arithmetic has threads of its own.
struct system_config : caf::actor_system_config {
  system_config();
};

}  // namespace troupe::actors
