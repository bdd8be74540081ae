#pragma once

#include <string_view>

#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// "NaN" or "infinity" where a tensor in a file holds one; empty where all values are finite, or
/// whole numbers. Errors: bad_data naming both.
[[nodiscard]] result<std::string_view> unfinite_value(const engine::tensor_reader& file,
                                                      const engine::safetensors_entry& tensor);

}  // namespace troupe::cluster
