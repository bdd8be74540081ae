#pragma once

#include <cstdint>
#include <string>

namespace troupe::engine {

/// What people read of a stage: "stage-1", or where there are several replicas of the pipeline
/// "stage-1 of replica 2". `place`: among the stages of all replicas, of which each has `stages`.
[[nodiscard]] inline std::string stage_name(std::uint32_t place, std::uint32_t stages,
                                            std::uint32_t replicas) {
  if (replicas <= 1 || stages == 0) return "stage-" + std::to_string(place);
  return "stage-" + std::to_string(place % stages) + " of replica " +
         std::to_string(place / stages);
}

}  // namespace troupe::engine
