#include "cluster/training/pipeline/run_needs.hpp"

#include <utility>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/schedule/generators.hpp"

namespace troupe::cluster {
namespace {

std::uint64_t bytes_of(const std::vector<engine::named_tensor>& tensors) {
  std::uint64_t sum = 0;
  for (const auto& each : tensors) sum += each.tensor.nbytes();
  return sum;
}

}  // namespace

result<doctor::run_needs> needs_of_run(const application& program, const trainer_config& config) {
  auto data = open_data_here(program, config);
  if (!data) return tl::unexpected(data.error());
  const auto run = prepare(program, config, std::move(*data));
  if (!run) return tl::unexpected(run.error());
  const auto& schedules = program.info.known.schedules;
  const auto layout =
      engine::layout_of(schedule_of(config.pipeline, schedules), config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto entry = program.info.known.optimizers.find(config.optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  const auto slots = actors::tensors_a_parameter(*entry, config.optimizer.options);
  if (!slots) return tl::unexpected(slots.error());
  doctor::run_needs out{.stage_bytes = {},
                        .of_what = "weights, gradients and the optimizer's state",
                        .saved_bytes = 0,
                        .wraps = layout->chunks > 1};
  std::uint64_t saved = 0;
  for (std::uint32_t stage = 0; stage < config.pipeline.stages; ++stage) {
    std::uint64_t all = 0;
    for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk) {
      const auto& range = run->ranges[layout->virtual_stage_of({stage, chunk})];
      const auto parameters = bytes_of(parameters_of(*run, range));
      const auto tensors = bytes_of(tensors_of(*run, range));
      all += tensors + parameters * (1 + *slots);
      saved += tensors + (config.train.save_state ? parameters * *slots : 0);
    }
    out.stage_bytes.push_back(all);
  }
  if (!config.train.save.empty()) out.saved_bytes = saved;
  return out;
}

}  // namespace troupe::cluster
