#pragma once

#include <cstdint>

namespace troupe::engine {

/// Which network the sockets of a collective library may use. It is the same for all of a process.
enum class socket_reach : std::uint8_t {
  loopback,  ///< This machine's alone: all ranks are on it.
  network,   ///< A trusted one, by the interface that the library's settings name or it chooses.
};

}  // namespace troupe::engine
