#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

// A saved run is a file of weights, which holds the model's tensors and nothing else, and where it
// was asked for a file of the optimizers' state beside it (state_file_of), under the names
// of optimizers/training/saved_state.hpp. The second one says of which weights it is, so that it is
// never taken for that of others which were saved under the same name.

/// What a saved run has of its own.
struct checkpoint {
  std::filesystem::path file;
  std::filesystem::path state_file;  ///< Equal to `file` where one file holds both.
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> states;  ///< Of parameters.
  at::Tensor scaler;                         ///< Undefined: none was saved.
};

/// What the file of the state that goes with these weights holds.
[[nodiscard]] std::vector<engine::named_tensor> state_of(
    const std::vector<engine::named_tensor>& weights, std::vector<engine::named_tensor> states);

/// Reads the weights and, if there is any, their state: from the file beside, or from the same
/// file, as runs before had it. A state file of other weights is passed over with a warning.
/// Errors: bad_data.
[[nodiscard]] result<checkpoint> read_checkpoint(const std::filesystem::path& file);

/// Leaves out of a checkpoint what the globs match (* for any text, ? for one character), and gives
/// it the model's own tensors of these names instead. Errors: bad_config for a glob that matches
/// nothing, or one of two tied weights only.
[[nodiscard]] result<void> skip_tensors(checkpoint& from, const engine::model& layers,
                                        const std::vector<std::string>& globs);

/// Refuses NaN and infinity, which training would only spread. Errors: bad_data naming the file and
/// the tensor.
[[nodiscard]] result<void> check_finite(const checkpoint& from);

/// Copies the weights into the model. Errors: bad_data, as engine::load_weights, naming the file
/// and, where one or two layers alone do not fit, the --init-skip that leaves them out.
[[nodiscard]] result<void> load_weights(const checkpoint& from, const engine::model& layers);

}  // namespace troupe::cluster
