#pragma once

#include <cstdint>
#include <functional>

#include "cluster/config/sources/command_line.hpp"
#include "cluster/doctor/doctor.hpp"
#include "cluster/training/checked_run.hpp"
#include "cluster/training/restarts/keeper_process.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "engine/partition/model_profile.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a program does for each kind of request on its command line.
struct program_actions {
  std::function<result<run_end>(const trainer_config&)> train;
  /// As a node of another process's run of the same program.
  std::function<result<void>(const node_options&)> serve;
  /// As the process that outlives a trainer, for one trainer after another (see keep_versions);
  /// left out: its runs have none.
  keeper_of_versions keep = {};
  /// What `--check` shows instead of training; left out: it shows errors, and refuses what has
  /// none.
  std::function<result<checked_run>(const trainer_config&)> check = {};
  /// What a micro-batch of so many samples leaves in each layer, measured here for another process
  /// of the run (see measure_in_process); left out: each process measures for itself.
  std::function<result<engine::model_profile>(const trainer_config&, std::int64_t samples)>
      measure = {};
  /// What a run needs, for `--doctor`; left out: its runs cannot be examined.
  doctor::needs_of needs = {};
  doctor::data_of data = {};  ///< How its data are opened, for the same.
  bool has_stages = true;     ///< Its runs are pipelines, and no parameter server's.
};

/// Reads the command line, acts, and reports errors on stderr. Returns the exit code: see
/// troupe::main.
[[nodiscard]] int run_program(const program_info& info, const program_actions& actions, int argc,
                              const char* const* argv);

}  // namespace troupe::cluster
