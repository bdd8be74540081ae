#include "cluster/training/needs/predicted_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "actors/pipeline/stage_needs.hpp"
#include "actors/transfer/piece.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/measured_layers.hpp"
#include "cluster/training/measuring_process.hpp"
#include "cluster/training/needs/version_memory.hpp"
#include "cluster/training/partitioning.hpp"
#include "engine/partition/cost_model.hpp"
#include "engine/partition/planner.hpp"

namespace troupe::cluster {
namespace {

constexpr double batches_at_trainer = 2;

void add_where_computed(engine::stage_memory& to, double bytes) {
  to.on_cpu += bytes;
  to.on_device += bytes;
}

/// Of its parameters and buffers, of that layer which has the most.
double largest_layer_bytes(const prepared_run& run) {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < run.layers.size(); ++i)
    most = std::max(most, engine::bytes_of(tensors_of(run, {i, i + 1})));
  return static_cast<double>(most);
}

std::vector<std::size_t> cuts_of(const prepared_run& run) {
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < run.ranges.size(); ++i) cuts.push_back(run.ranges[i].first);
  return cuts;
}

result<std::vector<stage_bytes>> bytes_of_stages(const prepared_run& run,
                                                 const pipeline_config& pipeline,
                                                 const optimizer_config& optimizer,
                                                 const registries& known) {
  const auto layout = layout_of(pipeline, known.schedules);
  if (!layout) return tl::unexpected(layout.error());
  const auto slots = tensors_a_parameter(optimizer, known.optimizers);
  if (!slots) return tl::unexpected(slots.error());
  const auto shares = state_shares_of(pipeline);
  std::vector<stage_bytes> all(pipeline.stages);
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    std::vector<engine::named_tensor> parameters;
    for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk) {
      const auto& range = run.ranges[layout->virtual_stage_of({stage, chunk})];
      all[stage].tensors += static_cast<double>(engine::bytes_of(tensors_of(run, range)));
      std::ranges::move(parameters_of(run, range), std::back_inserter(parameters));
    }
    all[stage].state =
        static_cast<double>(actors::largest_share_bytes(parameters, shares) * *slots);
    all[stage].parameters = static_cast<double>(engine::bytes_of(parameters));
    all[stage].even_state = static_cast<double>(engine::bytes_of(parameters) * *slots) / shares;
  }
  return all;
}

/// Whether one stage alone can be replayed, so that stages remember what they send.
bool logs_edges(const pipeline_config& pipeline, const train_config& train) {
  const bool is_replaceable = pipeline.edges == edge_transport::link &&
                              (pipeline.replicas == 1 || train.batch_norm != norm_scope::sync);
  return train.on_fault == fault_policy::recover && is_replaceable;
}

/// Adds the batches of whoever reads them, `bytes` each.
result<void> add_batches(const trainer_config& config, double bytes, predicted_memory& to) {
  const double again = logs_edges(config.pipeline, config.train) ? config.train.accumulate : 0;
  const auto reader = stage_of_data(config, config.data);
  if (!reader) return tl::unexpected(reader.error());
  const double all = (batches_at_trainer + again) * bytes;
  if (*reader)
    add_on_host(to.stages.at(**reader), all);
  else
    to.trainer += all;
  return {};
}

/// Adds what stages remember of the steps behind the last version: what they sent along the edges,
/// their gradients of tied weights, and for each parameter either the own gradient or the sum over
/// replicas, since one of them was sent to others.
void add_logs(const prepared_run& run, const engine::prediction& made,
              const pipeline_config& pipeline, const train_config& train,
              const std::vector<stage_bytes>& bytes, predicted_memory& to) {
  const double steps = train.accumulate + 1.0;
  for (std::size_t stage = 0; stage < made.stages.size(); ++stage)
    for (const auto& [receiver, sent] : made.stages[stage].sent_bytes)
      add_on_host(to.stages.at(stage), steps * sent);
  std::map<std::string, double> sizes;
  for (const auto& each : parameters_of(run, {0, run.layers.size()}))
    sizes[each.name] = static_cast<double>(each.tensor.nbytes());
  for (std::size_t stage = 0; pipeline.replicas > 1 && stage < bytes.size(); ++stage)
    add_where_computed(to.stages.at(stage), steps * bytes[stage].parameters);
  for (const auto& tie : run.ties) {
    add_where_computed(to.stages.at(tie.stage), steps * sizes[tie.parameter]);
    add_where_computed(to.stages.at(tie.other_stage), steps * sizes[tie.other_parameter]);
  }
}

}  // namespace

bool are_lent_whole(const prepared_run& run) {
  return largest_layer_bytes(run) <= static_cast<double>(actors::piece_limits().bytes);
}

result<predicted_memory> predict_memory(const planned_run& of) {
  const auto& [program, config, run] = of;
  const auto& known = program.info.known;
  auto how = planning_of(config, known, run.layers);
  if (!how) return tl::unexpected(how.error());
  how->batch_size = std::min(how->batch_size, run.data->size(engine::split::train));
  const auto parts = static_cast<std::int64_t>(run.microbatches);
  const auto measured = measure_in_process({run.layers, run.blueprint, config, known, *run.data},
                                           (how->batch_size + parts - 1) / parts);
  if (!measured) return tl::unexpected(measured.error());
  const auto& [samples, profile] = *measured;
  how->sample_bytes = bytes_of_sample(samples);
  const auto costs = engine::cost_model::fit({profile});
  if (!costs) return tl::unexpected(costs.error());
  const auto replicas = config.pipeline.replicas;  // each has its share of the batch
  how->batch_size = (how->batch_size + replicas - 1) / replicas;
  const auto made = engine::predict(
      *costs, *how, planned_microbatches(config.pipeline, config.train, run.microbatches),
      cuts_of(run));
  if (!made) return tl::unexpected(made.error());
  predicted_memory all;
  const double largest = largest_layer_bytes(run);
  for (const auto& stage : made->stages) {
    all.stages.push_back(stage.memory);
    add_on_host(all.stages.back(), largest);
  }
  const auto micro_batch = samples.inputs.nbytes() + samples.labels.nbytes();
  const double batch = static_cast<double>(micro_batch) * static_cast<double>(parts);
  if (auto added = add_batches(config, batch, all); !added) return tl::unexpected(added.error());
  const auto bytes = bytes_of_stages(run, config.pipeline, config.optimizer, known);
  if (!bytes) return tl::unexpected(bytes.error());
  if (logs_edges(config.pipeline, config.train))
    add_logs(run, *made, config.pipeline, config.train, *bytes, all);
  for (std::size_t stage = 0; stage < bytes->size(); ++stage) {
    const auto& own = bytes->at(stage);
    add_where_computed(all.stages[stage], own.state - own.even_state);  // the planner's are equal
    all.stages[stage].on_device += own.tensors - own.parameters;        // buffers
    if (!config.checkpoint.dir.empty())  // what it keeps while it writes its files
      add_on_host(all.stages[stage], own.tensors + own.state);
  }
  if (config.train.on_fault == fault_policy::recover)
    if (auto added = add_versions(*bytes, are_lent_whole(run), config, known, all); !added)
      return tl::unexpected(added.error());
  return all;
}

result<expected_memory> expect_memory(const planned_run& of) {
  auto memory = predict_memory(of);
  if (memory) return expected_memory{.stages = std::move(memory->stages)};
  const bool is_here = of.config.cluster.launch == launch_way::local;
  if (is_here && memory.error().code == errc::bad_config) return tl::unexpected(memory.error());
  return expected_memory{.why_not = std::move(memory.error().text)};
}

result<engine::model_profile> measure_layers(const application& program,
                                             const trainer_config& config, std::int64_t samples) {
  const auto data = open_data_here(program, config);
  if (!data) return tl::unexpected(data.error());
  const auto model = describe_model(program, config, **data);
  if (!model) return tl::unexpected(model.error());
  auto measured = measure_activations(
      {model->layers, model->blueprint, config, program.info.known, **data}, samples);
  if (!measured) return tl::unexpected(measured.error());
  return std::move(measured->profile);
}

}  // namespace troupe::cluster
