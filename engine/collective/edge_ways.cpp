#include "engine/collective/edge_ways.hpp"

#include <algorithm>

namespace troupe::engine {

std::vector<edge_way> ways_between_stages(const model_layout& layout) {
  std::vector<edge_way> ways;
  const auto add = [&ways](const edge_way& one) {
    if (one.from != one.to && std::ranges::find(ways, one) == ways.end()) ways.push_back(one);
  };
  for (std::uint32_t at = 0; at + 1 < layout.virtual_stages(); ++at) {
    const auto one = layout.slice_at(at).stage, next = layout.slice_at(at + 1).stage;
    add({.from = one, .to = next, .on = edge::input});
    add({.from = next, .to = one, .on = edge::gradient});
  }
  return ways;
}

}  // namespace troupe::engine
