#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "engine/blueprint/model_blueprint.hpp"
#include "engine/data/dataset.hpp"
#include "engine/partition/model_profile.hpp"
#include "engine/stage/stage_module.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The memory that a profile may take, and a callback for its progress.
struct profile_bounds {
  /// Of memory that this thread's operators may have at one time beside the samples.
  double bytes = std::numeric_limits<double>::infinity();
  std::function<void(std::size_t layer)> begins = {};  ///< Called on this thread; may be empty.
};

/// Bytes that a profile of each layer has at one time at least, known by its shapes alone: what it
/// is given and its copy, its weights, and a gradient of what it gives. `sample_shape`: one that
/// the model is given; `value_bytes`: of one value between layers.
[[nodiscard]] std::vector<double> least_profile_bytes(const model& described,
                                                      std::vector<std::int64_t> sample_shape,
                                                      std::int64_t samples, double value_bytes);

/// Measures a model on this thread with its intra-op threads, one layer at a time, so that there is
/// never more than one in memory: each runs what the layer before it gave of `samples` forward and
/// backward `repeats` times (after one to warm up), and the fastest counts: whatever else runs on
/// the machine only ever adds; 0 times measures bytes alone. In between it reads as
/// much other memory as the model has, so that a layer finds in the caches what it would find in
/// the model's company. `how`: precision, layout and loss as in the run; `is_first`, `is_last` and
/// `recompute` do not count. Errors: those of making a layer; bad_config for the bound, naming the
/// layer and both numbers, before memory over it is written; torch's exceptions pass through.
[[nodiscard]] result<model_profile> profile_model(const model_blueprint& of,
                                                  const stage_options& how, const batch& samples,
                                                  int repeats, const profile_bounds& within = {});

/// The mean of profiles of the same model and size, taken side by side.
[[nodiscard]] model_profile mean_of(const std::vector<model_profile>& profiles);

}  // namespace troupe::engine
