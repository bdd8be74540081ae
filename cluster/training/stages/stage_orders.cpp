#include "cluster/training/stages/stage_orders.hpp"

#include <cstddef>
#include <utility>

#include "cluster/training/node_run.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

actors::build_stage order_for(const stage_tables& config, const prepared_run& run,
                              const engine::model_layout& layout, std::uint32_t stage,
                              int threads) {
  const auto& optimizer = config.optimizer;
  std::vector<engine::layer_range> slices;
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
    slices.push_back(run.ranges[layout.virtual_stage_of({stage, chunk})]);
  return {.stage = {stage},
          .name = {},
          .model = config.model.name,
          .classes = run.model.classes,
          .model_options = run.model.options,
          .seed = run.model.seed,
          .slices = std::move(slices),
          .loss = config.train.loss,
          .precision = std::string(name_of(config.model.precision)),
          .tf32 = config.model.tf32,
          .deterministic = config.model.deterministic,
          .channels_last = config.model.memory_format == memory_format::channels_last,
          .threads = threads,
          .idle_cores = config.pipeline.idle_cores,
          .recompute = config.pipeline.recompute,
          .optimizer = optimizer.name,
          .optimizer_options = optimizer.options,
          .rules = {.groups = optimizer.groups,
                    .clip_value = optimizer.clip_value,
                    .accumulate = config.train.accumulate,
                    .state_shares = state_shares_of(config.pipeline)}};
}

}  // namespace

result<std::vector<actors::build_stage>> orders_for(const stage_tables& config,
                                                    const prepared_run& run,
                                                    const engine::schedule_choice& schedule) {
  const auto layout = engine::layout_of(schedule, config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto names = stage_names_of(config.pipeline);
  const auto threads = threads_of_stages(config);
  const auto seats = seats_of_stages(config);
  std::vector<actors::build_stage> orders;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto stage = static_cast<std::uint32_t>(i) % layout->stages;
    auto& order = orders.emplace_back(order_for(config, run, *layout, stage, threads.at(i)));
    order.name = names[i];
    order.device = seats[i].device;
    order.seat = seats[i].seat;
    order.seats = seats[i].seats;
  }
  return orders;
}

std::vector<std::string> device_memories(const pipeline_config& pipeline,
                                         const std::vector<actors::build_stage>& orders) {
  const bool shares_process = pipeline.stages_in == placement::threads;
  std::vector<std::string> memories;
  for (const auto& order : orders) {
    if (!shares_process)
      memories.push_back(order.name);
    else if (order.device != "auto")
      memories.push_back(order.device);
    else
      memories.push_back(
          engine::assign_device(engine::find_usable_cards(), order.seat, order.seats).device);
  }
  return memories;
}

actors::progress_settings stage_progress_of(const pipeline_config& pipeline,
                                            const observe_config& observe,
                                            const train_config& train, const prepared_run& run) {
  using engine::work_kind;
  auto settings = progress_of(observe, train);
  if (!run.predicted) return settings;
  const auto names = stage_names_of(pipeline);
  for (std::size_t i = 0; i < run.predicted->stages.size(); ++i) {
    const auto& stage = run.predicted->stages[i];
    for (auto place = i; place < names.size(); place += pipeline.stages)
      settings.predicted[names[place]] = {{work_kind::forward, stage.forward_s},
                                          {work_kind::backward, stage.backward_s},
                                          {work_kind::input_gradient, stage.backward_s},
                                          {work_kind::weight_gradient, stage.backward_s},
                                          {work_kind::update, stage.update_s}};
  }
  return settings;
}

void tell_orders(const prepared_run& run, const std::vector<actors::build_stage>& orders,
                 const std::string& link) {
  for (const auto& order : orders)
    for (const auto& [first, last] : order.slices)
      log::debug(order.name + ": layers " + std::to_string(first) + " to " +
                 std::to_string(last - 1) + ", " + order.model + " in " + order.precision +
                 (order.channels_last ? " channels_last" : "") + " on " + order.device +
                 ", intra-op threads: " + std::to_string(order.threads) +
                 (order.idle_cores ? ", idle cores help" : "") + "; " + link);
  log::debug(std::to_string(run.steps) + " steps of " + std::to_string(run.microbatches) +
             " micro-batches; optimizer " + orders.front().optimizer);
}

}  // namespace troupe::cluster
