#pragma once

#include "messages/base/error.hpp"

namespace troupe {

inline constexpr int exit_failed = 1;   // something went wrong while it ran
inline constexpr int exit_refused = 2;  // what the user gave cannot work

/// With which a program ends for an error.
[[nodiscard]] inline int exit_code(errc code) {
  switch (code) {
    case errc::bad_config:
    case errc::bad_data:
    case errc::address_unavailable:
    case errc::transport_missing:
    case errc::io_failed:
      return exit_refused;
    default:
      return exit_failed;
  }
}

}  // namespace troupe
