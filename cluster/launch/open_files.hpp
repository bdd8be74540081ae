#pragma once

#include <cstdint>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a process that has a link holds by itself.
inline constexpr std::uint64_t own_files = 48;
/// More: for each agent that it has started (pipes), each process of a run that it is connected
/// with, and each node process that is its child (pipes, connections, segments).
inline constexpr std::uint64_t files_an_agent = 6;
inline constexpr std::uint64_t files_a_process = 4;
inline constexpr std::uint64_t files_a_child = 12;

/// How many descriptors this process may hold: now, and if it raises that itself.
struct open_files_limit {
  std::uint64_t now = 0;
  std::uint64_t most = 0;
};
/// Errors: io_failed.
[[nodiscard]] result<open_files_limit> limit_on_open_files();

/// "raise the limit on open files (ulimit -n 64; ..)"
[[nodiscard]] std::string raise_open_files(std::uint64_t needed);

/// Makes sure that this process may hold so many descriptors, raising its own limit as far as the
/// system lets it: libraries fail in words of their own when there are none left. Children inherit
/// the limit. Errors: io_failed with both numbers and what to do.
[[nodiscard]] result<void> allow_open_files(std::uint64_t needed);

}  // namespace troupe::cluster
