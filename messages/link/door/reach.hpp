#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::messages::door {

/// Why nobody is reached at an address.
struct obstacle {
  enum class kind : std::uint8_t {
    refusal,     ///< The system says why no connection comes about.
    silence,     ///< There was no answer, as where packets are dropped.
    swallowing,  ///< A connection stands, but of what is sent over it nothing arrives.
  };
  kind what = kind::refusal;
  std::string why;  ///< "Connection refused", "no answer within 2.0 s"
};

/// The bytes that are sent to each address at once, so that the first packets have the full size
/// that the network should carry.
inline constexpr std::size_t knock_bytes = 64 << 10;
/// Packets are not reported as swallowed before this much time has passed.
inline constexpr std::chrono::milliseconds least_knock{1000};

/// Connects to all of these addresses at once, sends `knock_bytes` to each and hangs up when the
/// other side's system has acknowledged some of them or its process has ended the connection, as a
/// link does. For each what was in the way; nullopt: somebody is there, whoever that is. Waits for
/// it, `patience` at most.
[[nodiscard]] std::vector<std::optional<obstacle>> reach(const std::vector<std::string>& addresses,
                                                         std::chrono::milliseconds patience);

}  // namespace troupe::messages::door
