#pragma once

#include <unistd.h>

#include <cstddef>
#include <string_view>

#include "cluster/launch/start/retried.hpp"

namespace troupe::cluster {

/// Writes a text to a descriptor that waits for room. False, with errno: not all of it could be.
[[nodiscard]] inline bool write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const auto count = retried([&] { return ::write(to, text.data(), text.size()); });
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace troupe::cluster
