#pragma once

#include <cstdint>
#include <cstdio>

#include "messages/error.hpp"

namespace troupe::apps {

inline constexpr int exit_failed = 1;         // something went wrong while it ran
inline constexpr int exit_refused = 2;        // what the user gave cannot work
inline constexpr int exit_interrupted = 130;  // as a shell reports Ctrl-C

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

/// How a run ended well.
enum class run_end : std::uint8_t {
  complete,
  interrupted,  ///< Ctrl-C or SIGTERM; weights were saved all the same.
};

[[nodiscard]] inline int exit_code(run_end how) {
  return how == run_end::interrupted ? exit_interrupted : 0;
}

/// Says on stderr why a program ends, and returns its exit code.
inline int report(const char* program, const error& why) {
  std::fprintf(stderr, "%s: %s\n", program, why.text.c_str());
  return exit_code(why.code);
}

}  // namespace troupe::apps
