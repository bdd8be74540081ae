#pragma once

#include <cstdio>
#include <string>

#include "messages/base/error.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/printable.hpp"

namespace troupe::cluster {

inline constexpr int exit_saved_elsewhere = 3;  // what is saved is not where --save says
inline constexpr int exit_not_saved = 4;        // the weights or the state are nowhere
inline constexpr int exit_by_signal = 128;      // and the signal's number, as a shell reports it

/// How a run ended that had no error, except perhaps in saving its weights.
struct run_end {
  int signal = 0;     ///< That stopped it: Ctrl-C, SIGTERM, SIGHUP; 0: none, it is complete.
  int not_saved = 0;  ///< 0, exit_saved_elsewhere or exit_not_saved.
  std::string why_not_saved = {};
};

[[nodiscard]] inline int exit_code(const run_end& how) {
  if (how.not_saved != 0) return how.not_saved;
  return how.signal == 0 ? 0 : exit_by_signal + how.signal;
}

/// Says on stderr why a program ends, in one line, and returns its exit code.
inline int report(const char* program, const error& why) {
  std::fprintf(stderr, "%s: %s\n", program, printable(why.text).c_str());
  return exit_code(why.code);
}

/// The same for a run that has ended well.
inline int report(const char* program, const run_end& how) {
  if (how.not_saved != 0)
    std::fprintf(stderr, "%s: %s\n", program, printable(how.why_not_saved).c_str());
  return exit_code(how);
}

}  // namespace troupe::cluster
