#pragma once

#include <functional>

#include "cluster/config/sources/command_line.hpp"
#include "cluster/doctor/doctor.hpp"
#include "cluster/training/checked_run.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a program does for each kind of request on its command line.
struct program_actions {
  std::function<result<run_end>(const trainer_config&)> train;
  /// As a node of another process's run of the same program.
  std::function<result<void>(const node_options&)> serve;
  /// What `--check` shows instead of training; left out: it shows only errors.
  std::function<result<checked_run>(const trainer_config&)> check = {};
  /// What a run needs, for `--doctor`; left out: its runs cannot be examined.
  doctor::needs_of needs = {};
};

/// Reads the command line, acts, and reports errors on stderr. Returns the exit code: see
/// troupe::main.
[[nodiscard]] int run_program(const program_info& info, const program_actions& actions, int argc,
                              const char* const* argv);

}  // namespace troupe::cluster
