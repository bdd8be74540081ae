#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// BLAKE2b of a tensor's elements in a file, in row-major order: 128 bits, hexadecimal. Errors:
/// bad_data naming file and tensor.
[[nodiscard]] result<std::string> checksum_of(const engine::tensor_reader& file,
                                              const engine::safetensors_entry& tensor);

/// "NaN" or "infinity" where a tensor in a file holds one; empty where all values are finite, or
/// whole numbers. Errors: bad_data naming both.
[[nodiscard]] result<std::string_view> unfinite_value(const engine::tensor_reader& file,
                                                      const engine::safetensors_entry& tensor);

}  // namespace troupe::cluster
