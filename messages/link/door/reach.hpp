#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::messages::door {

/// Why somebody is not reached at an address.
struct obstacle {
  enum class kind : std::uint8_t {
    refusal,     ///< The system says why no connection comes about.
    silence,     ///< There was no answer, as where packets are dropped.
    swallowing,  ///< A connection stands, but of what is sent over it nothing arrives.
  };
  kind what = kind::refusal;
  std::string why;  ///< "Connection refused", "no answer within 2.0 s"
};

/// What is sent to each, at once, so that the first packets are as large as the way ought to carry.
inline constexpr std::size_t knock_bytes = 64 << 10;
/// No way is said to swallow what has had less time than this.
inline constexpr std::chrono::milliseconds least_knock{1000};

/// Connects to all of these addresses at once, sends `knock_bytes` to each and hangs up when the
/// other side's system has acknowledged some of them or its process has ended the connection, as a
/// link does. For each what was in the way; nullopt: somebody is there, whoever that is. Waits for
/// it, `patience` at most.
[[nodiscard]] std::vector<std::optional<obstacle>> reach(const std::vector<std::string>& addresses,
                                                         std::chrono::milliseconds patience);

}  // namespace troupe::messages::door
