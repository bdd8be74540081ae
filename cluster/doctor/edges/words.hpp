#pragma once

#include <chrono>
#include <cstdint>

// What a probe asks a listener over our link: the type of the one element of a request.

namespace troupe::cluster::doctor {

namespace words {

inline constexpr const char* echo = "doctor.echo";    ///< Answer.
inline constexpr const char* clock = "doctor.clock";  ///< Your time: [nanoseconds].
/// What is below our link, for whose address in UCX is [text]: [kind, address, token], or an empty
/// kind and why there is none.
inline constexpr const char* raw = "doctor.raw";

}  // namespace words

/// Since 1970, by this machine.
[[nodiscard]] inline std::int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace troupe::cluster::doctor
