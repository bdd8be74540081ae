#pragma once

#include <signal.h>

#include "cluster/launch/child_process.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {

/// Says in the log how a node's process ended; `expected`: it was told to. One that crashes on its
/// way out spoils nothing, but nobody else would hear of it.
inline void log_end(const child_exit& how, bool expected) {
  const bool crashed = how.signal != 0 && how.signal != SIGTERM && how.signal != SIGKILL;
  if (crashed && expected)
    log::warning(describe(how));
  else
    log::debug(describe(how));
}

}  // namespace troupe::cluster
