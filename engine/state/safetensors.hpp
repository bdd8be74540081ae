#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/stage/layer.hpp"
#include "messages/error.hpp"

namespace troupe::engine {

/// Reads every tensor of a safetensors file, in the file's order. The file is mapped; the tensors
/// own the mapping. Errors: bad_data naming the file and, where there is one, the tensor.
[[nodiscard]] result<std::vector<named_tensor>> load_safetensors(const std::filesystem::path& file);

/// Writes tensors (any device and dense layout; stored contiguous) beside `file`, syncs, then
/// renames over it, so that a reader never sees half a file. Errors: io_failed naming the file.
[[nodiscard]] result<void> save_safetensors(const std::filesystem::path& file,
                                            const std::vector<named_tensor>& tensors,
                                            const std::map<std::string, std::string>& metadata = {});

}  // namespace troupe::engine
