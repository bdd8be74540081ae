#include "cluster/hosts/placement_core.hpp"

#include <algorithm>

#include "cluster/hosts/memory_placement_core.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using places_or_fault = tl::expected<std::vector<std::size_t>, placement_fault>;

/// The stages that a node names.
places_or_fault place_named(std::uint32_t stages, const std::vector<node_room>& nodes) {
  std::vector<std::size_t> places(stages, nowhere);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const auto stage : nodes[node].stages) {
      const std::string who = "node \"" + nodes[node].name + "\": stage " + std::to_string(stage);
      if (stage >= stages)
        return tl::unexpected(placement_fault{node, who + " does not exist; the pipeline has " +
                                                        std::to_string(stages) + ", from 0"});
      if (places[stage] != nowhere)
        return tl::unexpected(placement_fault{
            node, who + " is on node \"" + nodes[places[stage]].name + "\" already"});
      places[stage] = node;
    }
  }
  return places;
}

/// Where one more stage shares its cores with the fewest.
std::size_t roomiest(const std::vector<node_room>& nodes, const std::vector<std::size_t>& counts) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const auto here = (counts[i] + 1) * nodes[best].cores;
    const auto there = (counts[best] + 1) * nodes[i].cores;
    if (here < there) best = i;
  }
  return best;
}

/// The nodes that run stages of a replica, as indices.
std::vector<std::size_t> nodes_of(std::uint32_t replica, const std::vector<node_room>& nodes) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& named = nodes[i].replicas;
    if (named.empty() || std::ranges::find(named, replica) != named.end()) out.push_back(i);
  }
  return out;
}

/// Gives the stages that are nowhere a node, by cores alone.
places_or_fault place_by_cores(std::vector<std::size_t> places,
                               const std::vector<node_room>& nodes) {
  std::vector<std::size_t> counts(nodes.size(), 0);
  for (const auto node : places)
    if (node != nowhere) ++counts[node];
  auto free = static_cast<std::size_t>(std::ranges::count(places, nowhere));
  std::vector<std::size_t> seats(nodes.size(), 0);  // of stages that no node names
  const auto seat = [&](std::size_t node) {
    ++counts[node];
    ++seats[node];
    --free;
  };
  for (std::size_t i = 0; i < nodes.size() && free > 0; ++i)
    if (counts[i] == 0) seat(i);  // a node that is named is to be used
  while (free > 0) seat(roomiest(nodes, counts));
  std::size_t node = 0;
  for (auto& place : places) {
    if (place != nowhere) continue;
    while (seats[node] == 0) ++node;
    place = node;
    --seats[node];
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (counts[i] == 0)
      return tl::unexpected(placement_fault{
          i, "node \"" + nodes[i].name +
                 "\" is left without a stage: " + std::to_string(places.size()) + " for " +
                 std::to_string(nodes.size()) + " nodes; take more stages, or leave the node out"});
  return places;
}

}  // namespace

places_or_fault place_stages(std::uint32_t stages, const std::vector<node_room>& nodes,
                             const std::vector<engine::stage_memory>& needs) {
  if (nodes.empty())
    return tl::unexpected(placement_fault{{}, "there is no node to put stages on"});
  auto named = place_named(stages, nodes);
  if (!named) return named;
  auto places = place_by_cores(*named, nodes);
  if (!places || needs.empty() || fits_memory(*places, nodes, needs)) return places;
  return place_by_memory(std::move(*named), nodes, needs);
}

places_or_fault place_replicas(std::uint32_t stages, std::uint32_t replicas,
                               const std::vector<node_room>& nodes,
                               const std::vector<engine::stage_memory>& needs) {
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const auto replica : nodes[i].replicas)
      if (replica >= replicas)
        return tl::unexpected(placement_fault{
            i,
            "node \"" + nodes[i].name + "\": replica " + std::to_string(replica) +
                " does not exist; the run has " + std::to_string(replicas) + ", from 0",
            "replicas"});
  std::vector<std::size_t> all;
  auto left = nodes;  // with the memory that earlier replicas leave
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    const auto indices = nodes_of(replica, nodes);
    if (indices.empty() && !nodes.empty())
      return tl::unexpected(placement_fault{
          {},
          "replica " + std::to_string(replica) + " has no node; name it in a [[node]]'s replicas"});
    std::vector<node_room> here;
    for (const auto index : indices) here.push_back(left[index]);
    auto places = place_stages(stages, here, needs);
    if (!places) {
      if (places.error().node) places.error().node = indices[*places.error().node];
      return places;
    }
    for (std::size_t stage = 0; stage < places->size(); ++stage) {
      const auto node = indices[places->at(stage)];
      all.push_back(node);
      if (!needs.empty()) take_from(left[node], needs[stage]);
    }
  }
  return all;
}

int threads_on(std::uint32_t cores, std::size_t stages, int wanted) noexcept {
  if (wanted > 0) return wanted;
  return std::max(1, static_cast<int>(cores / std::max<std::size_t>(1, stages)));
}

std::string words_on_absurd_threads(int threads, unsigned cores) {
  return std::to_string(threads) + " threads of one process are too many for " +
         counted(cores, "core") + ", where more than " + std::to_string(most_threads_a_core) +
         " for each only take turns; allowed there: up to " +
         std::to_string(std::int64_t{cores} * most_threads_a_core);
}

std::string words_on_threads(const thread_load& load, unsigned cores) {
  if (load.most <= 1 || static_cast<unsigned>(load.all) <= cores) return "";
  return "its stages have " + std::to_string(load.all) + " threads together, on " +
         counted(cores, "core") + ": threads that wait for a core slow all of them down; lower " +
         load.setting;
}

}  // namespace troupe::cluster
