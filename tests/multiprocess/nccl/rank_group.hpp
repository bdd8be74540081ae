#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tests/scratch_folder.hpp"

namespace troupe::tests {

/// Where a rank finds its socket to rank 0; that to rank N is N further on.
inline constexpr int first_socket = 20;

/// How a rank ended.
struct rank_end {
  int code = -1;     ///< Of its exit; -1: it was killed.
  int signal = 0;    ///< That killed it, or 0.
  double at_ms = 0;  ///< When it was reaped, by CLOCK_MONOTONIC.
  std::string out;
  std::string err;
};

/// Processes that are the ranks of one communicator, with a socket between each two.
class rank_group {
 public:
  /// Starts `ranks` processes of the rank program (TROUPE_NCCL_RANK). `environment`: what is added
  /// for one rank alone.
  rank_group(const std::string& library, int ranks, const std::string& scenario,
             const std::map<int, std::vector<std::string>>& environment = {});

  /// Waits until a rank has ended; they end by themselves after 100 seconds.
  rank_end wait(int rank);

 private:
  scratch_folder files_;
  std::vector<pid_t> processes_;
};

}  // namespace troupe::tests
