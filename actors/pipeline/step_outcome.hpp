#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/step/step_key.hpp"

namespace troupe::actors {

/// What one stage did in a step.
struct stage_share {
  double busy_s = 0;                     ///< Seconds of arithmetic, including the update.
  std::uint64_t peak_memory_bytes = 0;   ///< Of its process, so far.
  std::uint64_t peak_context_bytes = 0;  ///< Peak of what was kept for backwards in this step.
  std::uint64_t computed_again = 0;      ///< Actions that its process had begun before.
  std::uint64_t peak_device_bytes = 0;   ///< Of its process on its device, so far; 0 on the CPU.
};

/// The outcome of one step.
struct step_outcome {
  engine::step_key key;
  double loss = 0;                   ///< Mean over the batch.
  std::vector<double> metrics = {};  ///< Evaluation: each one's sum over the batch's labels.
  std::int64_t samples = 0;
  std::string skipped = {};  ///< Why the step was skipped; empty: it was not.
  double loss_scale = 1;     ///< Training: the factor of its loss.
  double seconds = 0;  ///< Since the step before ended, or since it began if the pipeline was idle.
  std::vector<stage_share> stages;
};

}  // namespace troupe::actors
