#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::cluster::doctor {

/// Which nodes must connect to which, as indices of nodes of which the first is the trainer's
/// machine, in the order in which they are to be tried. `places`: the node of each stage, those of
/// one replica of `stages` after those of another. Every node connects to the trainer; neighbours
/// in the pipeline connect to each other, whoever has something to say first; stages of one node do
/// so within it, and so do all replicas of a stage. `wraps`: the last stage also speaks to the
/// first, as where stages have several chunks.
[[nodiscard]] inline std::vector<std::pair<std::size_t, std::size_t>> edges_to_probe(
    std::size_t nodes, const std::vector<std::size_t>& places, std::size_t stages, bool wraps) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const auto add = [&out](std::size_t from, std::size_t to) {
    if (std::ranges::find(out, std::pair{from, to}) == out.end()) out.emplace_back(from, to);
  };
  for (std::size_t node = 1; node < nodes; ++node) add(node, 0);
  const auto both = [&add, &places](std::size_t one, std::size_t other) {
    add(places[one], places[other]);
    add(places[other], places[one]);
  };
  for (std::size_t begin = 0; begin < places.size(); begin += stages) {
    for (std::size_t stage = 1; stage < stages; ++stage) both(begin + stage - 1, begin + stage);
    if (wraps && stages > 1) both(begin + stages - 1, begin);
  }
  for (std::size_t one = 0; one < places.size(); ++one)
    for (auto other = one + stages; other < places.size(); other += stages) both(one, other);
  if (nodes == 1 && !places.empty()) add(0, 0);
  return out;
}

/// Edges, by their places, in rounds: those of one round may be measured at once, since no two of
/// them involve the same machine. `machines`: of each node, by any name.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> rounds_to_measure(
    const std::vector<std::pair<std::size_t, std::size_t>>& edges,
    const std::vector<std::string>& machines) {
  std::vector<std::vector<std::size_t>> rounds;
  std::vector<std::set<std::string>> busy;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto& from = machines.at(edges[i].first);
    const auto& to = machines.at(edges[i].second);
    std::size_t round = 0;
    while (round < rounds.size() && (busy[round].contains(from) || busy[round].contains(to)))
      ++round;
    if (round == rounds.size()) {
      rounds.emplace_back();
      busy.emplace_back();
    }
    rounds[round].push_back(i);
    busy[round].insert({from, to});
  }
  return rounds;
}

}  // namespace troupe::cluster::doctor
