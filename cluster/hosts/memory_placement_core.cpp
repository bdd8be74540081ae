#include "cluster/hosts/memory_placement_core.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

namespace troupe::cluster {
namespace {

constexpr double any_amount = std::numeric_limits<double>::infinity();

std::string mebi(double bytes) {
  return std::to_string(std::llround(bytes / (1 << 20))) + " MiB";
}

bool has_devices(const node_room& node) {
  return node.devices != node_devices::none;
}

/// What is taken of a node.
struct taken {
  double bytes = 0;         // of its own memory
  double device_bytes = 0;  // of its one GPU, or the most of one of its GPUs
  double nccl_bytes = 0;    // of that, NCCL's
  std::size_t stages = 0;

  void add(const engine::stage_memory& need, const node_room& node) {
    bytes += need.on_host(has_devices(node));
    if (node.devices == node_devices::shared) {
      device_bytes += need.of_device();
      nccl_bytes += need.by_nccl;
    } else if (node.devices == node_devices::own && need.of_device() > device_bytes) {
      device_bytes = need.of_device();
      nccl_bytes = need.by_nccl;
    }
    ++stages;
  }
  [[nodiscard]] double share(const node_room& node) const {
    return static_cast<double>(stages) / node.cores;
  }
  [[nodiscard]] bool fits_host(const node_room& node) const {
    return bytes <= node.memory_bytes.value_or(any_amount);
  }
  [[nodiscard]] bool fits(const node_room& node) const {
    return fits_host(node) && device_bytes <= node.device_bytes.value_or(any_amount);
  }
};

std::vector<taken> taken_of(const std::vector<std::size_t>& places,
                            const std::vector<node_room>& nodes,
                            const std::vector<engine::stage_memory>& needs) {
  std::vector<taken> all(nodes.size());
  for (std::size_t stage = 0; stage < places.size(); ++stage) {
    if (places[stage] == nowhere) continue;
    all[places[stage]].add(needs[stage], nodes[places[stage]]);
  }
  return all;
}

/// The best way to put the first stages of those that are free on the first nodes.
struct beginning {
  double share = any_amount;  // the most of a core's stages; infinity: there is no way
  std::size_t before = 0;     // how many of them the nodes before the last one have
};

/// How many of the free stages each node takes, in their order; nothing: there is no such way.
std::optional<std::vector<std::size_t>> seats_in_order(
    const std::vector<std::size_t>& free, const std::vector<taken>& named,
    const std::vector<node_room>& nodes, const std::vector<engine::stage_memory>& needs) {
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
        here.add(needs[free[last]], nodes[node]);
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

/// "812 MiB of a GPU and 40 MiB beside it", or on a CPU: "850 MiB of memory".
std::string text_of(const engine::stage_memory& need, bool has_device) {
  if (!has_device) return mebi(need.on_cpu) + " of memory";
  return mebi(need.of_device()) + " of a GPU" + engine::words_on_nccl(need.by_nccl) + " and " +
         mebi(need.beside_device) + " beside it";
}

/// The same of a stage that may go to any of the nodes.
std::string text_of(const engine::stage_memory& need, const std::vector<node_room>& nodes) {
  const auto with = std::ranges::count_if(nodes, has_devices);
  if (with == 0) return text_of(need, false);
  return text_of(need, true) +
         (with < std::ssize(nodes) ? ", or on a CPU " + text_of(need, false) : std::string());
}

/// What a node has left, as far as that is bounded.
std::string text_of(const node_room& node, const taken& used) {
  const double all = node.memory_bytes.value_or(any_amount) - used.bytes;
  const double device = node.device_bytes.value_or(any_amount) -
                        (node.devices == node_devices::shared ? used.device_bytes : 0);
  if (!has_devices(node) || device == any_amount)
    return all == any_amount ? "any memory" : mebi(all);
  return mebi(device) + " of a GPU" + (all == any_amount ? "" : " and " + mebi(all) + " beside it");
}

std::string text_of(const std::vector<node_room>& nodes, const std::vector<taken>& used) {
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    text += (text.empty() ? "node \"" : ", node \"") + nodes[i].name + "\" " +
            text_of(nodes[i], used[i]);
  return text;
}

/// Why a stage that no node names is on none.
placement_fault no_room_for(std::size_t stage, const std::vector<node_room>& nodes,
                            const std::vector<taken>& used,
                            const std::vector<engine::stage_memory>& needs) {
  const auto& need = needs[stage];
  const auto who =
      "stage " + std::to_string(stage) + " is predicted to take " + text_of(need, nodes);
  const auto fits_alone = [&](const node_room& node) {
    taken alone;
    alone.add(need, node);
    return alone.fits(node);
  };
  const std::string key =
      std::ranges::any_of(nodes, [](const auto& each) { return each.device_bytes.has_value(); })
          ? "device_memory_mib"
          : "memory_mib";
  if (std::ranges::any_of(nodes, fits_alone))
    return {{},
            who + ", and no node has that left: " + text_of(nodes, used) +
                "; take more stages, smaller micro-batches or more memory, or say where each stage "
                "goes (stages of [[node]])",
            key};
  const std::string remedy = "; take more stages or smaller micro-batches, or give a node more";
  const auto most = std::ranges::max_element(
      nodes, {}, [](const node_room& node) { return node.memory_bytes.value_or(any_amount); });
  if (std::ranges::none_of(nodes, has_devices))
    return {static_cast<std::size_t>(most - nodes.begin()),
            who + ", and no node has that: the largest, node \"" + most->name + "\", has " +
                mebi(*most->memory_bytes) + " for its stages" + remedy,
            key};
  return {
      {},
      who + ", and no node has that: " + text_of(nodes, std::vector<taken>(nodes.size())) + remedy,
      key};
}

/// The largest first, each where the fewest stages share a core.
tl::expected<std::vector<std::size_t>, placement_fault> place_largest_first(
    std::vector<std::size_t> places, std::vector<std::size_t> free,
    const std::vector<node_room>& nodes, const std::vector<engine::stage_memory>& needs) {
  std::ranges::stable_sort(free, std::greater(), [&](std::size_t stage) {
    return std::max(needs[stage].on_cpu, needs[stage].of_device());
  });
  auto used = taken_of(places, nodes, needs);
  const auto plus = [&](std::size_t node, std::size_t stage) {
    auto with = used[node];
    with.add(needs[stage], nodes[node]);
    return with;
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
                                        const std::vector<engine::stage_memory>& needs) {
  const auto named = taken_of(places, nodes, needs);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (named[i].fits(nodes[i])) continue;
    const bool by_device = named[i].fits_host(nodes[i]);
    const auto part = [&](const engine::stage_memory& need) {
      return by_device ? need.of_device() : need.on_host(has_devices(nodes[i]));
    };
    std::string which;
    for (std::size_t stage = 0; stage < places.size(); ++stage)
      if (places[stage] == i)
        which += (which.empty() ? "stage " : ", stage ") + std::to_string(stage) + " " +
                 mebi(part(needs[stage]));
    const bool has_own = by_device && nodes[i].devices == node_devices::own;
    return placement_fault{
        i,
        "node \"" + nodes[i].name + "\" has " +
            mebi(std::max(0.0, *(by_device ? nodes[i].device_bytes : nodes[i].memory_bytes))) +
            (by_device ? " of a GPU" : " of memory") + " for " +
            (has_own ? "each of its stages, of which one is" : "its stages, which are") +
            " predicted to take " + mebi(by_device ? named[i].device_bytes : named[i].bytes) +
            engine::words_on_nccl(by_device ? named[i].nccl_bytes : 0) + " (" + which +
            "); put fewer there, or take more stages or smaller micro-batches",
        by_device ? "device_memory_mib" : "memory_mib"};
  }
  return std::nullopt;
}

}  // namespace

void take_from(node_room& node, const engine::stage_memory& need) {
  if (node.memory_bytes) *node.memory_bytes -= need.on_host(has_devices(node));
  if (node.device_bytes && node.devices == node_devices::shared)
    *node.device_bytes -= need.of_device();
}

bool fits_memory(const std::vector<std::size_t>& places, const std::vector<node_room>& nodes,
                 const std::vector<engine::stage_memory>& needs) {
  return !overfull(places, nodes, needs);
}

tl::expected<std::vector<std::size_t>, placement_fault> place_by_memory(
    std::vector<std::size_t> places, const std::vector<node_room>& nodes,
    const std::vector<engine::stage_memory>& needs) {
  if (auto fault = overfull(places, nodes, needs)) return tl::unexpected(std::move(*fault));
  std::vector<std::size_t> free;
  for (std::size_t stage = 0; stage < places.size(); ++stage)
    if (places[stage] == nowhere) free.push_back(stage);
  const auto named = taken_of(places, nodes, needs);
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
