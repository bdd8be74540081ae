#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "engine/step/edge.hpp"

namespace troupe::engine {

/// One direction between two stages of a pipeline: activations or gradients, whatever the number of
/// chunks between which they go.
struct edge_way {
  std::uint32_t from = 0, to = 0;
  edge on = edge::input;

  bool operator==(const edge_way&) const = default;
};

/// All that lead from a stage to another one, each once, in the order of the model.
[[nodiscard]] std::vector<edge_way> ways_between_stages(const model_layout& layout);

}  // namespace troupe::engine
