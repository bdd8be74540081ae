#include "cluster/training/stages/node_memory.hpp"

#include <caf/actor_cast.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "actors/pipeline/stage_needs.hpp"
#include "messages/base/log.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::cluster {
namespace {

constexpr double tight = 1.25;  // of what is needed at least: activations come on top

/// What a node's stages take together.
struct node_needs {
  std::vector<std::string> stages;
  std::size_t first = 0;  // of the stages: its host answers
  std::uint64_t bytes = 0;
};

/// Of those nodes that have several stages whose memory is the machine's, by their numbers.
result<std::map<std::size_t, node_needs>> needs_of_nodes(
    const application& program, const trainer_config& config, const prepared_run& run,
    const std::vector<actors::build_stage>& orders, const std::vector<std::size_t>& places) {
  const auto entry = program.info.known.optimizers.find(config.optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  const auto options = optimizers::complete(*entry, config.optimizer.options);
  if (!options) return tl::unexpected(options.error());
  const auto kept = actors::tensors_a_parameter(*entry, *options);
  if (!kept) return tl::unexpected(kept.error());
  const auto names = stage_names_of(config.pipeline);
  std::map<std::size_t, node_needs> out;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (orders[i].device != "cpu") continue;
    auto& node = out[places.at(i)];
    if (node.stages.empty()) node.first = i;
    node.stages.push_back(names.at(i));
    node.bytes += actors::least_training_bytes(run.layers, orders[i].slices, *kept,
                                               orders[i].rules.state_shares);
  }
  std::erase_if(out, [](const auto& each) { return each.second.stages.size() < 2; });
  return out;
}

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& each : names) all += (all.empty() ? "" : ", ") + each;
  return all;
}

result<void> check_node(const std::string& name, const node_needs& needs,
                        const actors::memory_told& told) {
  const engine::free_memory room{.bytes = told.bytes,
                                 .swap_bytes = told.swap_bytes,
                                 .group_limit_bytes = told.group_limit_bytes};
  const auto least = static_cast<double>(needs.bytes);
  const auto what = "node " + name +
                    ": the weights, gradients and optimizer state of its stages (" +
                    listed(needs.stages) + ") take";
  auto fits = actors::check_room(what, least, room, told.host);
  if (!fits) return fits;
  if (auto easily = actors::check_room(what + ", with a quarter more for activations,",
                                       least * tight, room, told.host);
      !easily)
    log::warning(easily.error().text);
  return {};
}

}  // namespace

result<void> check_memory(node_group& group, actors::requester& ask, const application& program,
                          const trainer_config& config, const prepared_run& run,
                          const std::vector<actors::build_stage>& orders) {
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  if (!places) return {};  // there are no nodes
  const auto needs = needs_of_nodes(program, config, run, orders, *places);
  if (!needs) return tl::unexpected(needs.error());
  std::map<std::size_t, actors::future<actors::memory_told>> answers;
  for (const auto& [node, each] : *needs)
    answers.emplace(node, ask.request<actors::memory_told>(
                              caf::actor_cast<actors::host_actor>(group.hosts().at(each.first)),
                              actors::ask_memory{}, actors::usual_deadlines.greet));
  for (const auto& [node, answer] : answers) {
    const auto told = answer.get();
    if (!told) continue;  // a node that is lost meanwhile: whoever needs it next tells
    if (auto fits = check_node(config.cluster.nodes.at(node).name, needs->at(node), *told); !fits)
      return fits;
  }
  return {};
}

}  // namespace troupe::cluster
