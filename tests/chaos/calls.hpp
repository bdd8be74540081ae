#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// A call that is to fail once.
struct failing_call {
  std::string subject;
  std::string process;
  std::string call;
  std::uint64_t place = 0;   ///< Where it is made; 0: anywhere.
  std::uint32_t number = 1;  ///< Of the calls from there.
  int reason = 0;            ///< errno.
  std::string frames;        ///< For people: who makes it, innermost first.

  /// Arguments of the program chaos that do the same.
  [[nodiscard]] std::string to_repeat() const;
};

/// How a run with a failing call went.
struct tried_call {
  failing_call what;
  bool was_made = false;  ///< Else the run never came to that call.
  int code = 0;
  bool says_why = true;  ///< The system's word on the failure is in the last line, if it ended.
  std::string last_line;
  std::vector<std::string> complaints;  ///< Empty: as it should be.
  bool is_of_library = false;  ///< UCX or CAF ended its own process: known, and counted apart.
  std::string log;
};

/// The calls that a subject makes in an undisturbed run, one of each place of each process; of
/// processes of one kind (stage-0, stage-1) those of the first, and what only the others do.
/// Throws where that run goes wrong.
[[nodiscard]] std::vector<failing_call> count_calls(const subject& what, seconds bound);

[[nodiscard]] tried_call try_call(const failing_call& what, seconds bound);

/// A table of what became of the runs, by call, and each bad one with how to repeat it. Returns the
/// number of bad ones.
std::size_t report(const std::vector<tried_call>& all);

}  // namespace troupe::chaos
