#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troupe::engine {

/// A parameter, a buffer or a gradient, under its full name ("layer1.0.conv1.weight").
struct named_tensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace troupe::engine
