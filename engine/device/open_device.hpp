#pragma once

#include <string>
#include <vector>

#include "engine/device/device_choice.hpp"

namespace troupe::engine {

/// Makes LibTorch ready for a device that a config names ("cpu", "cuda:0"), and says why stages
/// cannot be trained on it and what to do; empty: they can. For a GPU the driver is asked and
/// LibTorch's CUDA library loaded, once a process: before anything in it asks LibTorch for a GPU
/// (an autograd step does), since LibTorch keeps the first answer. That takes a second and 230 MiB.
/// Other devices are left to LibTorch. Thread-safe.
[[nodiscard]] std::string open_device(const std::string& device);

/// The GPUs that device = "auto" can mean here. Makes LibTorch ready for them, as `open_device`
/// does. Thread-safe.
[[nodiscard]] usable_cards find_usable_cards();

/// The GPUs of this machine, as the driver tells of them. Makes LibTorch ready for them, as
/// `open_device` does. Thread-safe.
[[nodiscard]] const std::vector<card>& find_cards();

}  // namespace troupe::engine
