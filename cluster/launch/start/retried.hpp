#pragma once

#include <cerrno>

namespace troupe::cluster {

/// What a system call gives once no signal interrupts it.
template <class Call>
auto retried(const Call& call) {
  for (;;)
    if (const auto given = call(); given >= 0 || errno != EINTR) return given;
}

}  // namespace troupe::cluster
