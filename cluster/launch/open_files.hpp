#pragma once

#include <cstdint>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a process that has a link holds by itself.
inline constexpr std::uint64_t own_files = 48;

/// Makes sure that this process may hold so many descriptors, raising its own limit as far as the
/// system lets it: libraries fail in words of their own when there are none left. Children inherit
/// the limit. Errors: io_failed with both numbers and what to do.
[[nodiscard]] result<void> allow_open_files(std::uint64_t needed);

}  // namespace troupe::cluster
