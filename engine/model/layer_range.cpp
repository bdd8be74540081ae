#include "engine/model/layer_range.hpp"

#include <utility>

namespace troupe::engine {

std::vector<layer_range> slices_between(const std::vector<std::size_t>& cuts, std::size_t layers) {
  std::vector<layer_range> slices;
  std::size_t first = 0;
  for (const auto cut : cuts) slices.push_back({std::exchange(first, cut), cut});
  slices.push_back({first, layers});
  return slices;
}

}  // namespace troupe::engine
