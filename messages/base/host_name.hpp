#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace troupe {

/// What this machine calls itself; empty where it has no name. From any thread.
[[nodiscard]] inline std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace troupe
