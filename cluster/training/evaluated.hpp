#pragma once

#include <cstdint>
#include <vector>

#include "cluster/observe/report.hpp"
#include "engine/model/metric.hpp"

namespace troupe::cluster {

/// What an evaluation after so many steps found. `values`: one for each metric, in their order.
[[nodiscard]] inline evaluation_report evaluated(std::uint64_t step,
                                                 const engine::metric_registry& metrics,
                                                 const std::vector<double>& values) {
  evaluation_report made{step};
  for (const auto& [name, each] : metrics)
    made.metrics.push_back({name, values.at(made.metrics.size()), each.is_share, each.key});
  return made;
}

}  // namespace troupe::cluster
