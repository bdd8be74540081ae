#pragma once

#include <vector>

#include "engine/blueprint/model_blueprint.hpp"
#include "engine/data/dataset.hpp"
#include "engine/partition/model_profile.hpp"
#include "engine/stage/stage_module.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Measures a model on this thread with its intra-op threads, one layer at a time, so that there is
/// never more than one in memory: each runs what the layer before it gave of `samples` forward and
/// backward `repeats` times (after one to warm up), and the fastest counts: whatever else runs on
/// the machine only ever adds; 0 times measures bytes alone. In between it reads as
/// much other memory as the model has, so that a layer finds in the caches what it would find in
/// the model's company. `how`: precision, layout and loss as in the run; `is_first`, `is_last` and
/// `recompute` do not count. Errors: those of making a layer; torch's exceptions pass through.
[[nodiscard]] result<model_profile> profile_model(const model_blueprint& of,
                                                  const stage_options& how, const batch& samples,
                                                  int repeats);

/// The mean of profiles of the same model and size, taken side by side.
[[nodiscard]] model_profile mean_of(const std::vector<model_profile>& profiles);

}  // namespace troupe::engine
