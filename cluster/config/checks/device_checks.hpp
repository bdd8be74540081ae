#pragma once

#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The devices that the pipeline and the nodes name can be trained on, a part of `errors_together`.
/// Asks this machine's driver, and loads LibTorch's CUDA library, where a stage of this machine is
/// to use a GPU, and never else; other hosts say for themselves when they build their stages.
[[nodiscard]] std::vector<error> check_devices(draft& whole, const registries& known);

}  // namespace troupe::cluster
