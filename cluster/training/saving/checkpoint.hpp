#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "engine/model/layer.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

// A saved run is a file of weights, which holds the model's tensors and nothing else, and where it
// was asked for a file of the optimizers' state beside it (state_file_of), under the names
// of optimizers/training/saved_state.hpp. The second one says of which weights it is, so that it is
// never taken for that of others which were saved under the same name.

/// What a run starts from: tensors in files that stay open; none of them is in memory.
struct checkpoint {
  std::filesystem::path source;  ///< For errors: the file of weights, or a checkpoint's folder.
  engine::tensor_files weight_files;
  engine::tensor_files state_files;       ///< May be the same; empty: no state.
  std::vector<std::string> weights = {};  ///< In the files of weights.
  std::vector<std::string> states = {};   ///< Of parameters.
  at::Tensor scaler = {};                 ///< Undefined: none was saved.
  std::set<std::string> skipped = {};     ///< Of the model, which begin as they do without a file.
};

/// Opens the weights and the optimizer's state, if there is any: in the file beside, or in the same
/// file, as older versions wrote it. A state file of other weights is passed over with a warning.
/// Errors: bad_data.
[[nodiscard]] result<checkpoint> read_checkpoint(const std::filesystem::path& file);

/// Opens all files of a checkpoint that was found whole. Errors: bad_data.
[[nodiscard]] result<checkpoint> read_checkpoint(const whole_checkpoint& from);

/// Leaves out of a checkpoint what the globs match (* for any text, ? for one character). `layers`:
/// the model, described. Errors: bad_config for a glob that matches nothing, or one of two tied
/// weights only.
[[nodiscard]] result<void> skip_tensors(checkpoint& from, const engine::model& layers,
                                        const std::vector<std::string>& globs);

/// Refuses NaN and infinity, which training would only spread. Reads all that is not skipped.
/// Errors: bad_data naming the file and the tensor.
[[nodiscard]] result<void> check_finite(const checkpoint& from);

/// Whether the model has all that is not skipped, and nothing else. `layers`: the model, described.
/// Errors: bad_data, naming the file, the tensor and, where one or two layers alone do not fit, the
/// --init-skip that leaves them out.
[[nodiscard]] result<void> check_fits(const checkpoint& from, const engine::model& layers);

/// The names of the model's parameters and buffers, in its order.
[[nodiscard]] std::vector<std::string> names_of_weights(const engine::model& layers);

/// The names of the state that belongs to these parameters.
[[nodiscard]] std::vector<std::string> states_of(
    const checkpoint& from, const std::vector<engine::named_tensor>& parameters);

}  // namespace troupe::cluster
