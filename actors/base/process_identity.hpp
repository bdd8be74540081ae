#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors {

/// Where a process runs, in words that mean the same to every process of its host, so that they can
/// ask the operating system about it. A value type; it travels in a node's hello.
struct process_identity {
  std::string host;     ///< Boot id and pid namespace; empty: unknown, so nobody's neighbour.
  std::string network;  ///< The network namespace.
  std::int64_t pid = 0;
  std::int64_t started = 0;  ///< Clock ticks after boot: tells a later process of that number.

  bool operator==(const process_identity&) const = default;
};

/// What the operating system says of a process.
enum class process_state : std::uint8_t {
  unknown,  ///< Nothing: it may not tell us.
  alive,    ///< Running, or waiting for something; maybe only for a processor.
  traced,   ///< Held by a debugger.
  stopped,  ///< By a signal (SIGSTOP, SIGTSTP).
  gone,     ///< It has ended, reaped or not.
};

/// Ours. What the system does not tell stays empty.
[[nodiscard]] process_identity own_identity();

/// The most memory that this process has held at once, in bytes.
[[nodiscard]] std::uint64_t peak_memory_bytes() noexcept;

/// The state of a process of our own host. Any thread; a few microseconds.
[[nodiscard]] process_state state_of(const process_identity& process);

}  // namespace troupe::actors
