#include "cluster/training/needs/memory_places.hpp"

#include <algorithm>
#include <utility>

namespace troupe::cluster {

bool names_memory(const cluster_config& cluster) {
  return std::ranges::any_of(cluster.nodes, [](const node_entry& node) {
    return node.memory_mib > 0 || node.device_memory_mib > 0;
  });
}

result<placed_run> place_by_memory(const planned_run& of) {
  placed_run placed{of.config, {}};
  const int times = of.config.train.on_fault == fault_policy::recover ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    auto memory = predict_memory({of.program, placed.config, of.run});
    if (!memory) return tl::unexpected(memory.error());
    placed.config.cluster.stage_needs = memory->stages;
    placed.memory = std::move(*memory);
    if (auto places = node_of_stages(placed.config); !places) return tl::unexpected(places.error());
  }
  return placed;
}

}  // namespace troupe::cluster
