#include "cluster/training/needs/run_needs.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/memory_places.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"

namespace troupe::cluster {
namespace {

/// Adds what the stages take with activations.
result<void> add_prediction(const planned_run& of, doctor::run_needs& to) {
  to.is_placed_by_memory = names_memory(of.config.cluster);
  if (to.is_placed_by_memory)
    return place_by_memory(of).map(
        [&to](placed_run placed) { to.predicted = std::move(placed.memory.stages); });
  return expect_memory(of).map([&to](expected_memory memory) {
    to.predicted = std::move(memory.stages);
    to.why_not_predicted = std::move(memory.why_not);
  });
}

}  // namespace

result<doctor::run_needs> needs_of_run(const application& program, const trainer_config& config) {
  auto data = open_data_here(program, config);
  if (!data) return tl::unexpected(data.error());
  const auto run = prepare(program, config, std::move(*data));
  if (!run) return tl::unexpected(run.error());
  const auto& known = program.info.known;
  const auto layout = layout_of(config.pipeline, known.schedules);
  if (!layout) return tl::unexpected(layout.error());
  const auto slots = tensors_a_parameter(config.optimizer, known.optimizers);
  if (!slots) return tl::unexpected(slots.error());
  doctor::run_needs out{.stage_bytes = {},
                        .of_what = "weights, gradients and the optimizer's state",
                        .saved_bytes = 0,
                        .slices = {.weights = {}, .state = {}},
                        .wraps = layout->chunks > 1};
  const auto shares = state_shares_of(config.pipeline);
  std::uint64_t saved = 0;
  for (std::uint32_t stage = 0; stage < config.pipeline.stages; ++stage) {
    std::vector<engine::layer_range> slices;
    std::vector<engine::named_tensor> parameters;
    std::uint64_t weights = 0;
    for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk) {
      const auto& range = run->ranges[layout->virtual_stage_of({stage, chunk})];
      slices.push_back(range);
      weights += engine::bytes_of(tensors_of(*run, range));
      std::ranges::move(parameters_of(*run, range), std::back_inserter(parameters));
    }
    auto state = actors::share_bytes(parameters, shares);
    for (auto& each : state) each *= *slots;
    saved += weights;
    if (config.train.save_state) saved = std::reduce(state.begin(), state.end(), saved);
    out.slices.weights.push_back(weights);
    out.slices.state.push_back(std::move(state));
    out.stage_bytes.push_back(actors::least_training_bytes(run->layers, slices, *slots, shares));
  }
  if (!config.train.save.empty()) out.saved_bytes = saved;
  if (auto added = add_prediction({program, config, *run}, out); !added)
    return tl::unexpected(added.error());
  return out;
}

doctor::requests::data data_to_examine(const application& program, const trainer_config& config) {
  const auto how = dataset_options_of(program, config);
  return {.source = how.source,
          .context = how.context,
          .image_size = how.image_size,
          .seed = how.seed,
          .threads = how.threads,
          .strict = how.strict};
}

}  // namespace troupe::cluster
