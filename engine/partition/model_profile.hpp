#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::engine {

/// How often the update that a profile measures reads or writes each byte of the parameters.
inline constexpr double update_passes = 8;

/// What one micro-batch of a fixed size costs in one layer.
struct layer_cost {
  std::string name;
  double forward_s = 0;
  double input_s = 0;       ///< Backward to the input, and to what cannot be left for later.
  double weight_s = 0;      ///< Deferred gradients of weights, and adding to the step's sum.
  double kept_bytes = 0;    ///< Of activations between forward and backward; of the last layer,
                            ///< those of the loss too.
  double output_bytes = 0;  ///< What would cross a cut behind it.
  /// Of the last layer: the most that it and the loss have at once beside what is kept.
  double loss_bytes = 0;
  std::uint64_t parameter_bytes = 0;
  double copied_bytes = 0;  ///< Of copies of weights, kept from micro-batch to micro-batch.
  double update_s = 0;      ///< Of the optimizer, a step, whatever the micro-batch.
  double macs = 0;          ///< Of one sample's forward: counted, not measured.

  bool operator==(const layer_cost&) const = default;
};

/// The layers of a model, measured with micro-batches of one size. The last layer includes the
/// loss.
struct model_profile {
  std::int64_t samples = 0;  ///< In the micro-batch.
  std::vector<layer_cost> layers;

  bool operator==(const model_profile&) const = default;
};

}  // namespace troupe::engine
