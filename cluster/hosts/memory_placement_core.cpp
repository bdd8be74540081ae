#include "cluster/hosts/memory_placement_core.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

namespace troupe::cluster {
namespace {

constexpr double any_amount = std::numeric_limits<double>::infinity();

std::string mebi(double bytes) {
  return std::to_string(std::llround(bytes / (1 << 20))) + " MiB";
}

/// What is taken of a node.
struct taken {
  double bytes = 0;
  std::size_t stages = 0;

  [[nodiscard]] double share(const node_room& node) const {
    return static_cast<double>(stages) / node.cores;
  }
  [[nodiscard]] bool fits(const node_room& node) const {
    return bytes <= node.memory_bytes.value_or(any_amount);
  }
};

std::vector<taken> taken_of(const std::vector<std::size_t>& places, std::size_t nodes,
                            const std::vector<double>& needs) {
  std::vector<taken> all(nodes);
  for (std::size_t stage = 0; stage < places.size(); ++stage) {
    if (places[stage] == nowhere) continue;
    all[places[stage]].bytes += needs[stage];
    ++all[places[stage]].stages;
  }
  return all;
}

/// The best way to put the first stages of those that are free on the first nodes.
struct beginning {
  double share = any_amount;  // the most of a core's stages; infinity: there is no way
  std::size_t before = 0;     // how many of them the nodes before the last one have
};

/// How many of the free stages each node takes, in their order; nothing: there is no such way.
std::optional<std::vector<std::size_t>> seats_in_order(const std::vector<std::size_t>& free,
                                                       const std::vector<taken>& named,
                                                       const std::vector<node_room>& nodes,
                                                       const std::vector<double>& needs) {
  using ways = std::vector<beginning>;  // by the number of free stages that have a place
  std::vector<ways> best(nodes.size() + 1, ways(free.size() + 1));
  best[0][0].share = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (std::size_t first = 0; first <= free.size(); ++first) {
      if (best[node][first].share == any_amount) continue;
      auto here = named[node];
      for (auto last = first;; ++last) {
        if (!here.fits(nodes[node])) break;
        const double share = std::max(best[node][first].share, here.share(nodes[node]));
        if (here.stages > 0 && share < best[node + 1][last].share)
          best[node + 1][last] = {share, first};
        if (last == free.size()) break;
        here.bytes += needs[free[last]];
        ++here.stages;
      }
    }
  }
  auto placed = free.size();
  if (best.back()[placed].share == any_amount) return std::nullopt;
  std::vector<std::size_t> seats(nodes.size());
  for (auto node = nodes.size(); node > 0; --node) {
    seats[node - 1] = placed - best[node][placed].before;
    placed = best[node][placed].before;
  }
  return seats;
}

/// Why a stage that no node names is on none.
placement_fault no_room_for(std::size_t stage, const std::vector<node_room>& nodes,
                            const std::vector<taken>& used, const std::vector<double>& needs) {
  const auto most = std::ranges::max_element(
      nodes, {}, [](const node_room& node) { return node.memory_bytes.value_or(any_amount); });
  const auto who = "stage " + std::to_string(stage) + " is predicted to take " +
                   mebi(needs[stage]) + " of memory";
  if (needs[stage] > most->memory_bytes.value_or(any_amount))
    return {static_cast<std::size_t>(most - nodes.begin()),
            who + ", and no node has that: the largest, node \"" + most->name + "\", has " +
                mebi(*most->memory_bytes) +
                " for its stages; take more stages or smaller micro-batches, or give a node more",
            "memory_mib"};
  std::string left;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    left += (left.empty() ? "node \"" : ", node \"") + nodes[i].name + "\" " +
            mebi(nodes[i].memory_bytes.value_or(any_amount) - used[i].bytes);
  return {{},
          who + ", and no node has that left: " + left +
              "; take more stages, smaller micro-batches or more memory, or say where each stage "
              "goes (stages of [[node]])",
          "memory_mib"};
}

/// The largest first, each where the fewest stages share a core.
tl::expected<std::vector<std::size_t>, placement_fault> place_largest_first(
    std::vector<std::size_t> places, std::vector<std::size_t> free,
    const std::vector<node_room>& nodes, const std::vector<double>& needs) {
  std::ranges::stable_sort(free, std::greater(), [&](std::size_t stage) { return needs[stage]; });
  auto used = taken_of(places, nodes.size(), needs);
  const auto plus = [&](std::size_t node, std::size_t stage) {
    return taken{used[node].bytes + needs[stage], used[node].stages + 1};
  };
  for (const auto stage : free) {
    auto best = nowhere;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (plus(i, stage).fits(nodes[i]) &&
          (best == nowhere ||
           plus(i, stage).share(nodes[i]) < plus(best, stage).share(nodes[best])))
        best = i;
    if (best == nowhere) return tl::unexpected(no_room_for(stage, nodes, used, needs));
    places[stage] = best;
    used[best] = plus(best, stage);
  }
  const auto empty = std::ranges::find(used, std::size_t{0}, &taken::stages);
  if (empty == used.end()) return places;
  const auto index = static_cast<std::size_t>(empty - used.begin());
  return tl::unexpected(placement_fault{
      index,
      "node \"" + nodes[index].name +
          "\" is left without a stage where stages are placed by their predicted memory; give it "
          "more, say where each stage goes (stages of [[node]]), or leave the node out",
      "memory_mib"});
}

/// A node whose memory does not hold what it names; nothing: there is none.
std::optional<placement_fault> overfull(const std::vector<std::size_t>& places,
                                        const std::vector<node_room>& nodes,
                                        const std::vector<double>& needs) {
  const auto named = taken_of(places, nodes.size(), needs);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (named[i].fits(nodes[i])) continue;
    std::string which;
    for (std::size_t stage = 0; stage < places.size(); ++stage)
      if (places[stage] == i)
        which += (which.empty() ? "stage " : ", stage ") + std::to_string(stage) + " " +
                 mebi(needs[stage]);
    return placement_fault{
        i,
        "node \"" + nodes[i].name + "\" has " + mebi(std::max(0.0, *nodes[i].memory_bytes)) +
            " of memory for its stages, which are predicted to take " + mebi(named[i].bytes) +
            " (" + which + "); put fewer there, or take more stages or smaller micro-batches",
        "memory_mib"};
  }
  return std::nullopt;
}

}  // namespace

bool fits_memory(const std::vector<std::size_t>& places, const std::vector<node_room>& nodes,
                 const std::vector<double>& needs) {
  return !overfull(places, nodes, needs);
}

tl::expected<std::vector<std::size_t>, placement_fault> place_by_memory(
    std::vector<std::size_t> places, const std::vector<node_room>& nodes,
    const std::vector<double>& needs) {
  if (auto fault = overfull(places, nodes, needs)) return tl::unexpected(std::move(*fault));
  std::vector<std::size_t> free;
  for (std::size_t stage = 0; stage < places.size(); ++stage)
    if (places[stage] == nowhere) free.push_back(stage);
  const auto named = taken_of(places, nodes.size(), needs);
  auto seats = seats_in_order(free, named, nodes, needs);
  if (!seats) return place_largest_first(std::move(places), std::move(free), nodes, needs);
  std::size_t node = 0;
  for (const auto stage : free) {
    while (seats->at(node) == 0) ++node;
    places[stage] = node;
    --seats->at(node);
  }
  return places;
}

}  // namespace troupe::cluster
