#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::engine {

/// A parameter, a buffer or a gradient, under its full name ("layer1.0.conv1.weight").
struct named_tensor {
  std::string name;
  at::Tensor tensor;
};

/// Of all of them together; one that is undefined has none.
[[nodiscard]] inline std::uint64_t bytes_of(const std::vector<named_tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const auto& each : tensors) bytes += each.tensor.defined() ? each.tensor.nbytes() : 0;
  return bytes;
}

}  // namespace troupe::engine
