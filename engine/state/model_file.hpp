#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/base/named_tensor.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Copies a model's tensors from the files that hold them under their names, one at a time, but
/// those in `except`. `own`: tensors of layers, as collect_weights gives them; they are written. On
/// an error they are partly the new ones. Errors: bad_config naming a tensor that all lack, or one
/// that has another shape or kind and its file; those of tensor_reader.
[[nodiscard]] result<void> load_weights(const tensor_files& from,
                                        const std::vector<named_tensor>& own,
                                        const std::set<std::string>& except);

}  // namespace troupe::engine
