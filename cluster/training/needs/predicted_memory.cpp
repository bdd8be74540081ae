#include "cluster/training/needs/predicted_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "actors/pipeline/stage_needs.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "actors/transfer/piece.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/measured_layers.hpp"
#include "cluster/training/measuring_process.hpp"
#include "cluster/training/partitioning.hpp"
#include "cluster/training/restarts/keeper_process.hpp"
#include "engine/partition/cost_model.hpp"
#include "engine/partition/planner.hpp"

namespace troupe::cluster {
namespace {

constexpr double batches_at_trainer = 2;

void add_on_host(engine::stage_memory& to, double bytes) {
  to.on_cpu += bytes;
  to.beside_device += bytes;
}

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

/// What a stage of one replica keeps.
struct stage_bytes {
  double tensors = 0;     // parameters and buffers
  double parameters = 0;  // alone
  double state = 0;       // of the optimizer, at most where replicas share it out
  double even_state = 0;  // the same if shares were all equal
};

result<std::vector<stage_bytes>> bytes_of_stages(const prepared_run& run,
                                                 const pipeline_config& pipeline,
                                                 const optimizer_config& optimizer,
                                                 const registries& known) {
  const auto layout = engine::layout_of(schedule_of(pipeline, known.schedules), pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  const auto entry = known.optimizers.find(optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  const auto slots = actors::tensors_a_parameter(*entry, optimizer.options);
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

/// Whether processes of one machine lend each other memory, and all that join may be of this one.
bool lends_here(const cluster_config& cluster, const link_config& link) {
  return transport_of(link) == messages::link_transport::shm ||
         (link.transport == transport::mixed && cluster.launch != launch_way::none);
}

/// Which stages of all replicas lend their versions to processes of their machine.
std::vector<bool> lenders_of(const placement_tables& config, const link_config& link,
                             bool are_whole) {
  std::vector<bool> lend;
  for (const auto& seat : seats_of_stages(config, std::thread::hardware_concurrency()))
    lend.push_back(lends_here(config.cluster, link) && are_whole && seat.device == "cpu");
  return lend;
}

/// Where the versions of each stage are kept beside its own node, as far as the config tells which
/// stages lend memory to the trainer. `lends`: see lenders_of.
result<std::vector<other_keepers>> keepers_of(const placement_tables& config,
                                              std::vector<bool> lends) {
  std::vector<std::string> hosts(lends.size());
  const auto& cluster = config.cluster;
  if (cluster.nodes.empty()) return keepers_beside(hosts, lends);
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  if (!places) return tl::unexpected(places.error());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto& node = cluster.nodes[places->at(i)];
    hosts[i] = node.name;
    if (is_over_hosts(cluster.launch) && !means_this_machine(host_of_user(node.host)))
      lends[i] = false;
  }
  return keepers_beside(hosts, lends);
}

/// Of which stages of all replicas the keeper elsewhere shares no memory with the stage.
std::vector<bool> are_versions_sent(const placement_tables& config, const link_config& link,
                                    const std::vector<other_keepers>& keepers) {
  const bool lends = lends_here(config.cluster, link);
  std::vector<bool> sent(keepers.size(), !lends);
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  if (!lends || !places || !is_over_hosts(config.cluster.launch)) return sent;
  const auto host = [&](std::size_t place) {
    return host_of_user(config.cluster.nodes[places->at(place)].host);
  };
  for (std::size_t i = 0; i < keepers.size(); ++i) {
    const auto& other = keepers[i].stage;
    sent[i] = other ? host(i) != host(*other) : !means_this_machine(host(i));
  }
  return sent;
}

/// Which stages' versions are sent, in any replica.
std::vector<std::optional<sent_version>> sent_versions(const std::vector<stage_bytes>& bytes,
                                                       const std::vector<bool>& are_sent,
                                                       bool same_on_every_cpu) {
  std::vector<std::optional<sent_version>> all(bytes.size());
  for (std::size_t i = 0; i < are_sent.size(); ++i) {
    const auto& of = bytes[i % bytes.size()];
    const double state = of.tensors + of.state;
    // A gradient for each parameter, or its value where another replica updates it.
    if (are_sent[i])
      all[i % bytes.size()] =
          sent_version{.state = state, .update = same_on_every_cpu ? of.tensors : state};
  }
  return all;
}

/// Adds what is kept for a run that goes on after a loss: two versions of each stage on its own
/// node, on another and with the trainer, or three in a process that outlives it; and where a
/// keeper computes them, the gradients until it has. Of replicas, the one that keeps the most
/// counts. `are_whole`: see are_lent_whole.
result<void> add_versions(const std::vector<stage_bytes>& bytes, bool are_whole,
                          const trainer_config& config, const registries& known,
                          predicted_memory& to) {
  constexpr double kept = actors::kept_versions::most;
  const auto stages = bytes.size();
  const bool outlives = outlives_trainer(config);
  const auto version = [&](std::size_t stage) {
    return kept * (bytes[stage].tensors + bytes[stage].state);
  };
  const auto lends = lenders_of(config, config.link, are_whole);
  const bool maps = std::ranges::all_of(lends, std::identity());
  const auto keepers = keepers_of(config, lends);
  if (!keepers) return tl::unexpected(keepers.error());
  const auto entry = known.optimizers.find(config.optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  const auto are_sent = are_versions_sent(config, config.link, *keepers);
  to.sent = sent_versions(bytes, are_sent, entry->same_on_every_cpu);
  std::vector<double> for_others(keepers->size(), 0), arriving(keepers->size(), 0);
  for (std::size_t i = 0; i < keepers->size(); ++i) {
    const auto& [other, trainer] = keepers->at(i);
    const auto& sent = to.sent[i % stages];
    const double update = are_sent[i] && sent->is_update(false) ? sent->update : 0;
    if (other) {
      for_others[*other] += version(i % stages);
      arriving[*other] += update;
    }
    if (trainer && !outlives) to.trainer += version(i % stages) + (other ? 0 : update);
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    double most = 0, most_arriving = 0;
    for (auto i = stage; i < for_others.size(); i += stages) {
      most = std::max(most, for_others[i]);
      most_arriving = std::max(most_arriving, arriving[i]);
    }
    auto& own = to.stages.at(stage);
    const double lent_longer = outlives && maps ? version(stage) / kept : 0;
    add_on_host(own, version(stage) + lent_longer + most);
    own.on_cpu += most_arriving;
    if (to.sent[stage] && to.sent[stage]->is_update(false)) own.on_cpu += bytes[stage].parameters;
    if (maps) to.mapped += most;
  }
  return {};
}

/// Adds what a stage keeps of itself while it writes its files of a checkpoint.
void add_checkpoint(const std::vector<stage_bytes>& bytes, predicted_memory& to) {
  for (std::size_t stage = 0; stage < bytes.size(); ++stage)
    add_on_host(to.stages.at(stage), bytes[stage].tensors + bytes[stage].state);
}

/// Whether one stage alone can be replayed, so that stages remember what they send.
bool logs_edges(const pipeline_config& pipeline, const train_config& train) {
  const bool is_replaceable = pipeline.edges == edge_transport::link &&
                              (pipeline.replicas == 1 || train.batch_norm != norm_scope::sync);
  return train.on_fault == fault_policy::recover && is_replaceable;
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

result<predicted_memory> predict_memory(const application& program, const trainer_config& config,
                                        const prepared_run& run) {
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
  const double remembered = logs_edges(config.pipeline, config.train) ? config.train.accumulate : 0;
  const double batches = (batches_at_trainer + remembered) * static_cast<double>(micro_batch) *
                         static_cast<double>(parts);
  const auto reader = stage_of_data(config, config.data, std::thread::hardware_concurrency());
  if (!reader) return tl::unexpected(reader.error());
  if (*reader)
    add_on_host(all.stages.at(**reader), batches);
  else
    all.trainer += batches;
  const auto bytes = bytes_of_stages(run, config.pipeline, config.optimizer, known);
  if (!bytes) return tl::unexpected(bytes.error());
  if (logs_edges(config.pipeline, config.train))
    add_logs(run, *made, config.pipeline, config.train, *bytes, all);
  for (std::size_t stage = 0; stage < bytes->size(); ++stage) {
    const auto& own = bytes->at(stage);
    add_where_computed(all.stages[stage], own.state - own.even_state);  // the planner's are equal
    all.stages[stage].on_device += own.tensors - own.parameters;        // buffers
  }
  if (!config.checkpoint.dir.empty()) add_checkpoint(*bytes, all);
  if (config.train.on_fault == fault_policy::recover)
    if (auto added = add_versions(*bytes, are_lent_whole(run), config, known, all); !added)
      return tl::unexpected(added.error());
  return all;
}

result<expected_memory> expect_memory(const application& program, const trainer_config& config,
                                      const prepared_run& run) {
  auto memory = predict_memory(program, config, run);
  if (memory) return expected_memory{.stages = std::move(memory->stages)};
  const bool is_here = config.cluster.launch == launch_way::local;
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
