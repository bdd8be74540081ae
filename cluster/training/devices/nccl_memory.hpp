#pragma once

#include <vector>

#include "cluster/config/config_tables.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/schedule/plan.hpp"

namespace troupe::cluster {

/// The GPUs of this machine, if stages with device = "auto" run here and the estimate depends on
/// how these share them. The driver alone is asked, since LibTorch keeps its first answer (see
/// engine::open_device).
[[nodiscard]] engine::usable_cards cards_to_share(const placement_tables& config);

/// What NCCL is estimated to take of the GPU of each stage, in bytes, in all replicas alike: for
/// its edges, and for its sums over replicas where nothing in the config keeps NCCL from making
/// them. Whether NCCL is there is only found out where stages run. `here`: of cards_to_share; on
/// other hosts each stage with device = "auto" is taken to have a GPU of its own. The config is
/// checked.
[[nodiscard]] std::vector<double> nccl_bytes_of_stages(const placement_tables& config,
                                                       const link_config& link,
                                                       const engine::model_layout& layout,
                                                       const engine::usable_cards& here);

}  // namespace troupe::cluster
