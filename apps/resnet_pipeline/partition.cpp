#include "apps/resnet_pipeline/partition.hpp"

#include "engine/partition/partition.hpp"
#include "engine/stage/model.hpp"

namespace troupe::apps {
namespace {

result<std::vector<std::size_t>> choose_cuts(const engine::model& layers,
                                             const cluster::pipeline_config& config,
                                             std::vector<std::int64_t> sample_shape) {
  if (!config.cut.empty()) return engine::parse_cuts(engine::layer_names(layers), config.cut);
  std::vector<double> costs;
  for (const auto& layer : layers) costs.push_back(layer->multiply_adds(sample_shape));
  return engine::even_cuts(costs, slices_of(config));
}

}  // namespace

result<std::vector<std::pair<std::size_t, std::size_t>>> stage_ranges(
    const engine::model& layers, const cluster::pipeline_config& config,
    std::vector<std::int64_t> sample_shape) {
  auto cuts = choose_cuts(layers, config, std::move(sample_shape));
  if (!cuts) return tl::unexpected(cuts.error());
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  std::size_t first = 0;
  cuts->push_back(layers.size());
  for (const auto cut : *cuts) {
    ranges.emplace_back(first, cut);
    first = cut;
  }
  return ranges;
}

}  // namespace troupe::apps
