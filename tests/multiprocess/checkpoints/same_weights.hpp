#pragma once

#include <filesystem>

namespace troupe::tests {

/// Checks that two safetensors files (engine/state/safetensors.hpp) hold the same tensors, in
/// whatever order. Reads them without LibTorch, which takes longer to load than they to compare.
void check_same_weights(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace troupe::tests
