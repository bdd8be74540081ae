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
  /// Names that only the readers here know: the other end of a tie of which a file has one.
  std::set<std::string> stand_ins = {};
  bool is_of_run = false;  ///< It was found by a checkpoint's manifest.
};

/// Opens the weights and the optimizer's state, if there is any: in the file beside, or in the same
/// file, as older versions wrote it. A state file of other weights is passed over with a warning.
/// Errors: bad_data.
[[nodiscard]] result<checkpoint> read_checkpoint(const std::filesystem::path& file);

/// Opens all files of a checkpoint that was found whole. Errors: bad_data.
[[nodiscard]] result<checkpoint> read_checkpoint(const whole_checkpoint& from);

/// Leaves out of what was opened, a checkpoint or a file of --init, what the globs of `skip` match
/// (* for any text, ? for one character), and checks the rest, which it reads: nothing is NaN or
/// infinite, which training would only spread, the model has all of it and nothing else, and the
/// ends of a tie have the same bits. If a file has only one end, that stands for both. A run's own
/// checkpoint with ends that differ is warned of, since its run went on with them. `layers`: the
/// model, described. Errors: that of opening it; bad_config for a glob that matches nothing, or one
/// of two tied weights only; bad_data, naming the file, the tensors and, where one or two layers
/// alone do not fit, the --init-skip that leaves them out.
[[nodiscard]] result<checkpoint> check_start(const engine::model& layers, result<checkpoint> from,
                                             const std::vector<std::string>& skip);

/// The names of the model's parameters and buffers, in its order.
[[nodiscard]] std::vector<std::string> names_of_weights(const engine::model& layers);

/// The names of the state that belongs to these parameters.
[[nodiscard]] std::vector<std::string> states_of(
    const checkpoint& from, const std::vector<engine::named_tensor>& parameters);

}  // namespace troupe::cluster
