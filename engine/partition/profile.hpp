#pragma once

#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/partition/model_profile.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::engine {

/// Measures a whole model on this thread with its intra-op threads: runs `samples` forward and
/// backward `repeats` times (at least 1, after one to warm up) and takes the fastest of each layer:
/// whatever else runs on the machine only ever adds.
/// `how`: precision, layout and loss as in the run; `is_first`, `is_last` and `recompute` do not
/// count. Changes the model's buffers, not its parameters. Torch's exceptions pass through.
[[nodiscard]] model_profile profile_model(const model& layers, const stage_options& how,
                                          const batch& samples, int repeats);

/// The mean of profiles of the same model and size, taken side by side.
[[nodiscard]] model_profile mean_of(const std::vector<model_profile>& profiles);

}  // namespace troupe::engine
