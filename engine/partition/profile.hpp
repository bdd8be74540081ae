#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::engine {

/// What one micro-batch of a fixed size costs in one layer.
struct layer_cost {
  std::string name;
  double forward_s = 0;
  double input_s = 0;       ///< Backward to the input, and to what cannot be left for later.
  double weight_s = 0;      ///< Deferred gradients of weights, and adding to the step's sum.
  double kept_bytes = 0;    ///< Of activations between forward and backward.
  double output_bytes = 0;  ///< What would cross a cut behind it.
  std::uint64_t parameter_bytes = 0;
  double update_s = 0;  ///< Of the optimizer, a step, whatever the micro-batch.
};

/// The layers of a model, measured with micro-batches of one size. The last layer includes the
/// loss.
struct model_profile {
  std::int64_t images = 0;  ///< In the micro-batch.
  std::vector<layer_cost> layers;
};

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
