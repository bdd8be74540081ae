#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// Where a run is, by what it has said until then.
enum class phase : std::uint8_t {
  starting,  ///< No process has joined.
  joining,   ///< Some have.
  building,  ///< All have; weights are made and sent.
  training,
  evaluating,  ///< Between two steps.
  saving,      ///< After the last step, until the file is there, and its evaluation.
  leaving,     ///< After the last evaluation.
  gone,
};
[[nodiscard]] const char* name_of(phase where);

[[nodiscard]] phase phase_of(const subject& what, const std::vector<log_line>& log);

/// What was done to a run, and what became of it.
struct tried_moment {
  std::uint64_t seed = 0;
  std::string subject;
  std::string fault;  ///< "SIGTERM to the program".
  phase where = phase::gone;
  std::string end;  ///< "code 143, weights".
  std::string last_line;
  std::vector<std::string> complaints;
  std::string log;
};

/// What undisturbed runs are like, measured once for each subject: when their lines come.
class pace {
 public:
  explicit pace(seconds bound) : bound_(bound) {}
  /// Throws where that run goes wrong.
  [[nodiscard]] const std::vector<seconds>& of(const subject& what);

 private:
  seconds bound_;
  std::map<std::string, std::vector<seconds>> lines_;
};

/// One run, to which something is done at a moment: all of it follows from the seed. `only`: a
/// subject; empty: any. `in_place` as of run_folder.
[[nodiscard]] tried_moment try_moment(std::uint64_t seed, const std::string& only, pace& usual,
                                      seconds bound, bool in_place = false);

/// A table of phases and ends, and each bad one with how to repeat it. Returns the number of bad
/// ones.
std::size_t report(const std::vector<tried_moment>& all);

}  // namespace troupe::chaos
