#pragma once

#include <chrono>
#include <cstdint>

namespace troupe::cluster {

/// Since 1970, by this machine.
[[nodiscard]] inline std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace troupe::cluster
