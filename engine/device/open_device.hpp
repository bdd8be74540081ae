#pragma once

#include <string>

namespace troupe::engine {

/// Makes LibTorch ready for a device that a config names ("cpu", "cuda:0"), and says why stages
/// cannot be trained on it and what to do; empty: they can. For a GPU the driver is asked and
/// LibTorch's CUDA library loaded, once a process: before anything in it asks LibTorch for a GPU
/// (an autograd step does), since LibTorch keeps the first answer. That takes a second and 230 MiB.
/// Other devices are left to LibTorch. Thread-safe.
[[nodiscard]] std::string open_device(const std::string& device);

}  // namespace troupe::engine
