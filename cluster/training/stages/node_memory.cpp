#include "cluster/training/stages/node_memory.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/measured_layers.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "engine/base/free_memory.hpp"
#include "messages/base/host_name.hpp"
#include "messages/base/log.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::cluster {
namespace {

bool are_on_cpu(const std::vector<actors::build_stage>& orders) {
  return std::ranges::all_of(orders, [](const auto& each) { return each.device == "cpu"; });
}

/// What a node's stages take together.
struct node_needs {
  std::vector<std::size_t> stages;  // the host of the first one answers
  std::string names;                // theirs, "stage-0, stage-1"
  std::uint64_t least_bytes = 0;    // without activations, of those on the CPU ..
  std::size_t on_cpu = 0;           // .. and how many they are
};

/// Of those nodes whose memory some stage computes in, by their numbers.
result<std::map<std::size_t, node_needs>> needs_of_nodes(
    const optimizers::registry& known, const pipeline_config& pipeline,
    const optimizer_config& optimizer, const prepared_run& run,
    const std::vector<actors::build_stage>& orders, const std::vector<std::size_t>& places) {
  const auto kept = tensors_a_parameter(optimizer, known);
  if (!kept) return tl::unexpected(kept.error());
  const auto names = stage_names_of(pipeline);
  std::map<std::size_t, node_needs> out;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    auto& node = out[places.at(i)];
    node.stages.push_back(i);
    node.names += (node.names.empty() ? "" : ", ") + names.at(i);
    if (orders[i].device != "cpu") continue;
    ++node.on_cpu;
    node.least_bytes += actors::least_training_bytes(run.layers, orders[i].slices, *kept,
                                                     orders[i].rules.state_shares);
  }
  std::erase_if(out, [](const auto& each) { return each.second.on_cpu == 0; });
  return out;
}

/// A node, what its stages take, and what it says of its memory.
struct asked_node {
  std::string name;
  node_needs needs;
  std::string host;
  engine::free_memory room;
};

std::vector<asked_node> ask_nodes(node_group& group, actors::requester& ask,
                                  const cluster_config& cluster,
                                  const std::map<std::size_t, node_needs>& needs) {
  std::map<std::size_t, actors::future<actors::memory_told>> answers;
  for (const auto& [node, each] : needs)
    answers.emplace(node,
                    ask.request<actors::memory_told>(
                        caf::actor_cast<actors::host_actor>(group.hosts().at(each.stages.front())),
                        actors::ask_memory{}, actors::usual_deadlines.greet));
  std::vector<asked_node> out;
  for (const auto& [node, answer] : answers) {
    const auto told = answer.get();
    if (!told) continue;  // a node that is lost meanwhile: whoever needs it next tells
    out.push_back({cluster.nodes.at(node).name, needs.at(node), told->host, told->room});
  }
  return out;
}

result<void> check_least(const asked_node& node) {
  if (node.needs.on_cpu < 2) return {};
  return actors::check_room("node " + node.name +
                                ": the weights, gradients and optimizer state of its stages (" +
                                node.needs.names + ") take",
                            static_cast<double>(node.needs.least_bytes), node.room, node.host);
}

/// Of each stage of a replica; none where it cannot be predicted.
result<std::vector<engine::stage_memory>> predict(const planned_run& of) {
  const auto& known = of.config.cluster.stage_needs;
  if (!known.empty()) return known;
  if (of.run.distant) return std::vector<engine::stage_memory>();  // the data are elsewhere
  return expect_memory(of).map([](expected_memory memory) {
    if (!memory.why_not.empty())
      log::debug("what the stages take with activations is not predicted: " + memory.why_not);
    return std::move(memory.stages);
  });
}

/// What all layers give for a batch, in bytes, known by their shapes alone.
double given_bytes(const prepared_run& run, const train_config& train) {
  constexpr double value = 4;
  auto shape = run.data->sample_shape();
  double all = 0;
  for (const auto& each : run.layers) {
    static_cast<void>(each->macs(shape));
    double values = static_cast<double>(train.batch_size);
    for (const auto side : shape) values *= static_cast<double>(side);
    all += values * value;
  }
  return all;
}

/// Whether nodes have room for whatever a prediction could say, so that nothing has to be measured.
/// A decoder's layer keeps up to 57 times what it gives (Korthikanti et al., 2022, section 4.1).
bool are_roomy(const std::vector<asked_node>& nodes, double given) {
  constexpr double most_kept = 60, most_shares = 3;  // of what is given, and of what weights need
  return std::ranges::all_of(nodes, [given](const asked_node& node) {
    return most_shares * static_cast<double>(node.needs.least_bytes) + most_kept * given <=
           actors::free_bytes(node.room);
  });
}

void warn_of_prediction(const asked_node& node, const std::vector<engine::stage_memory>& predicted,
                        const std::vector<actors::build_stage>& orders) {
  double bytes = 0;
  for (const auto stage : node.needs.stages)
    bytes += predicted.at(stage % predicted.size()).on_host(orders.at(stage).device != "cpu");
  const auto lack = actors::predicted_lack(
      "node " + node.name + ": its stages (" + node.needs.names + ") are predicted to take", bytes,
      node.room, node.host);
  if (!lack.empty()) log::warning(lack);
}

/// Stages that are threads have one memory, and each of them looks before the others have taken
/// their parts of it. `room`: before they take any.
result<void> check_threads(const planned_run& of, const std::vector<actors::build_stage>& orders,
                           const engine::free_memory& room) {
  constexpr double most_shares = 3;  // of weights, that activations and the rest rarely exceed
  const auto& [program, config, run] = of;
  const auto all = needs_of_nodes(program.info.known.optimizers, config.pipeline, config.optimizer,
                                  run, orders, std::vector<std::size_t>(orders.size()));
  if (!all) return tl::unexpected(all.error());
  if (all->empty()) return {};
  const auto& needs = all->at(0);
  const auto who = "all stages (" + needs.names + "), which are threads of one process, ";
  const auto place = config.places.of("pipeline.stages_in") + ": ";
  const auto least = static_cast<double>(needs.least_bytes);
  const auto fits = actors::check_room(
      place + "the weights, gradients and optimizer state of " + who + "take", least, room);
  if (!fits || most_shares * least <= actors::free_bytes(room)) return fits;
  const auto predicted = predict(of);
  if (!predicted) return tl::unexpected(predicted.error());
  double bytes = 0;
  for (std::size_t i = 0; i < orders.size() && !predicted->empty(); ++i)
    bytes += predicted->at(i % predicted->size()).on_host(orders[i].device != "cpu");
  if (auto enough = actors::check_room(place + who + "are predicted to take", bytes, room); !enough)
    return enough;
  // What LibTorch takes when it computes for the first time, it has now.
  const auto lack = actors::predicted_lack(place + who + "are predicted to take", bytes,
                                           engine::read_free_memory(), host_name());
  if (!lack.empty()) log::warning(lack);
  return {};
}

/// Of a run on this machine alone: what is known without a measurement, or by a quick one.
result<void> check_here(const planned_run& of, const std::vector<actors::build_stage>& orders) {
  const auto& [program, config, run] = of;
  const auto room = engine::read_free_memory();
  if (!run.distant)
    if (auto fits = check_batch(config.train, config.places, config.cluster, *run.data, room);
        !fits)
      return fits;
  const auto samples = std::min(config.train.batch_size, run.data->size(engine::split::train));
  const auto parts = static_cast<std::int64_t>(run.microbatches);
  const layers_to_measure what{run.layers, run.blueprint, config, program.info.known, *run.data};
  if (are_on_cpu(orders))
    if (auto fits = check_measurable(what, (samples + parts - 1) / parts, room); !fits) return fits;
  if (config.pipeline.stages_in != placement::threads) return {};
  return check_threads(of, orders, room);
}

}  // namespace

result<void> check_memory(node_group& group, actors::requester& ask, const planned_run& of,
                          const std::vector<actors::build_stage>& orders) {
  const auto& [program, config, run] = of;
  if (config.cluster.launch == launch_way::local)
    if (auto fits = check_here(of, orders); !fits) return fits;
  const auto places = node_of_stages(config);
  if (!places) return {};  // there are no nodes
  const auto needs = needs_of_nodes(program.info.known.optimizers, config.pipeline,
                                    config.optimizer, run, orders, *places);
  if (!needs) return tl::unexpected(needs.error());
  const auto nodes = ask_nodes(group, ask, config.cluster, *needs);
  for (const auto& node : nodes)
    if (auto fits = check_least(node); !fits) return fits;
  if (are_roomy(nodes, given_bytes(run, config.train))) return {};
  const auto predicted = predict(of);
  if (!predicted) return tl::unexpected(predicted.error());
  for (const auto& node : nodes)
    if (!predicted->empty()) warn_of_prediction(node, *predicted, orders);
  return {};
}

std::vector<engine::stage_memory> needs_to_tell(const planned_run& of,
                                                const std::vector<actors::build_stage>& orders) {
  const bool is_known = of.run.predicted || !of.config.cluster.stage_needs.empty();
  if (!is_known || are_on_cpu(orders)) return {};
  auto predicted = predict(of);
  if (predicted) return std::move(*predicted);
  log::debug("what the stages take of their devices is not predicted: " + predicted.error().text);
  return {};
}

}  // namespace troupe::cluster
