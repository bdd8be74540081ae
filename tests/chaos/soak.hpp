#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// What a process holds at one time.
struct holdings {
  std::size_t resident_bytes = 0;
  std::size_t files = 0;
  std::size_t threads = 0;
  std::size_t maps = 0;
};

/// Of one process of a run, as long as it was watched.
struct holder {
  std::string name;  ///< "stage-1".
  std::vector<holdings> course;
};

/// What grew, in words: the median of the last quarter against that of the second. Memory may by a
/// twentieth and 16 MiB, for allocators settle late; files and threads by two and maps by 16, for
/// some come and go. Too few samples show nothing, which is said too.
[[nodiscard]] std::vector<std::string> growth_of(const holder& one);

/// One undisturbed run of that length, stopped by SIGTERM, whose processes are watched. Prints what
/// they held. Returns the number of things that are wrong.
std::size_t watch(const subject& what, double length_seconds);

/// For `hours`, in rounds: one long run that is watched, and beside it short ones that are
/// disturbed at random, each by a process of its own of the program `self`. Prints what each round
/// found. Returns the number of rounds with something wrong; what is left on the machine counts.
std::size_t soak(const std::string& self, double hours, std::uint64_t seed);

}  // namespace troupe::chaos
