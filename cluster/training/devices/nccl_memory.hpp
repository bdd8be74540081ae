#pragma once

#include <vector>

#include "cluster/config/trainer_config.hpp"
#include "engine/schedule/plan.hpp"

namespace troupe::cluster {

/// What NCCL is estimated to take of the GPU of each stage, in bytes, in all replicas alike: for
/// its edges, and for its sums over replicas where nothing in the config keeps NCCL from making
/// them. Whether NCCL is there is only found out where stages run. The config is checked.
[[nodiscard]] std::vector<double> nccl_bytes_of_stages(const trainer_config& config,
                                                       const engine::model_layout& layout);

}  // namespace troupe::cluster
