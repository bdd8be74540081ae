#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::messages::door {

/// Connects to all of these addresses at once, says nothing and hangs up: for each, whether the
/// system reached somebody there, whoever that is. Waits for it, `patience` at most. Errors:
/// address_unavailable with the system's words; timed_out: no answer, as where packets are dropped.
[[nodiscard]] std::vector<result<void>> reach(const std::vector<std::string>& addresses,
                                              std::chrono::milliseconds patience);

}  // namespace troupe::messages::door
