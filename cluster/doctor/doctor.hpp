#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cluster/config/trainer_config.hpp"
#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/slice_needs_core.hpp"

namespace troupe::cluster::doctor {

/// What a run takes, as far as it is known before it starts.
struct run_needs {
  std::vector<std::uint64_t> stage_bytes;  ///< Memory of each stage on a CPU, at least.
  std::string of_what;                     ///< "weights, gradients and optimizer state"
  std::uint64_t saved_bytes = 0;           ///< Of what it saves at its end; 0: nothing.
  slice_sizes slices = {};                 ///< Of a checkpoint; no stages: not predicted.
  /// The peak of each stage, with activations; empty: not predicted.
  std::vector<engine::stage_memory> predicted = {};
  std::string why_not_predicted = {};
  bool is_placed_by_memory = false;  ///< By what is predicted.
  bool wraps = false;                ///< The last stage also speaks to the first.
  /// Threads of each process of a run that has no stages: all are on the trainer's machine, and
  /// need `stage_bytes` together.
  std::vector<int> threads_of_processes = {};
};

/// Errors: bad_data where the data cannot be used; others where the run cannot be prepared.
using needs_of = std::function<result<run_needs>(const trainer_config&)>;

/// How a run's data are opened.
using data_of = std::function<requests::data(const trainer_config&)>;

/// What a program knows of its runs.
struct run_knowledge {
  needs_of needs;  ///< Left out: they cannot be examined.
  data_of data;
  bool has_stages = true;  ///< Else they are a parameter server's.
};

/// Examines every node and edge of a run, from the machine of its trainer. Starts an agent on each
/// node and ends it.
[[nodiscard]] examination examine(const trainer_config& config, const run_knowledge& program);

}  // namespace troupe::cluster::doctor
