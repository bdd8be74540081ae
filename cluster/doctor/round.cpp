#include "cluster/doctor/round.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/membership/launchers/agent_start.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr auto limits = actors::usual_deadlines;

using edge = std::pair<std::size_t, std::size_t>;

template <class Action>
std::vector<std::future<void>> begin_for_each(const std::vector<visited*>& nodes, Action action) {
  std::vector<std::future<void>> under_way;
  for (auto* const node : nodes)
    under_way.push_back(std::async(std::launch::async, [node, action] { action(*node); }));
  return under_way;
}

void wait_for(std::vector<std::future<void>>& all) {
  for (auto& each : all) each.get();
}

template <class Action>
void for_each_at_once(const std::vector<visited*>& nodes, Action action) {
  auto under_way = begin_for_each(nodes, action);
  wait_for(under_way);
}

/// Those of which what can be learned is known; others may be changed meanwhile by who examines
/// them.
std::vector<visited*> seen(tour& all) {
  std::vector<visited*> out;
  for (auto& node : all.nodes)
    if (node.is_seen) out.push_back(&node);
  return out;
}

/// Whether what a node lacks, which is a finding of its own, keeps its processes from listening.
bool lacks_listening(const host_facts& facts, const agent_plan& plan) {
  const bool has_no_socket = std::ranges::any_of(facts.folders, [](const folder_facts& each) {
    return each.purpose == sockets_purpose && !each.error.empty();
  });
  return !opens_port(plan.link.transport) && (has_no_socket || !facts.shared_error.empty());
}

/// Has a node open the data that it is to read.
void open_data_on(visited& node) {
  if (!node.data) return;
  auto& facts = *node.who.facts;
  facts.data_source = node.data->source;
  const auto said = node.visit->ask(*node.data, limits.build);
  const auto found =
      said.error.empty() ? decode_host(said.lines) : fail(errc::io_failed, said.error);
  facts.data_error = found ? found->data_error : facts.data_source + ": " + found.error().text;
}

/// Waits until a node is reached, and has its facts.
void examine_node(visited& node) {
  if (!node.way.valid()) return;
  auto opened = node.way.get();
  if (!opened) {
    node.who.lost = with_remedy_of_start(opened.error().text);
    node.who.never_came = node.is_awaited && opened.error().code == errc::timed_out;
    return;
  }
  node.visit = std::move(*opened);
  node.who.warnings = node.visit->warnings();
  const auto asked_at = wall_clock_ns();
  const auto said = node.visit->ask(node.asked, limits.examine);
  auto facts = said.error.empty() ? decode_host(said.lines) : fail(errc::io_failed, said.error);
  if (!facts) {
    node.who.lost = with_remedy_of_start(facts.error().text);
    return;
  }
  facts->asked_ns = asked_at;
  facts->answered_ns = wall_clock_ns();
  node.host.addresses = facts->addresses;
  node.who.facts = std::move(*facts);
  open_data_on(node);
}

/// As the launcher does, once all agents have said their addresses.
void choose_networks(tour& all) {
  std::vector<agent_host*> hosts;
  std::vector<visited*> nodes;
  for (auto* const node : seen(all)) {
    if (node->listen.peer.empty() || !node->who.facts) continue;
    node->host.listen = node->wanted;
    hosts.push_back(&node->host);
    nodes.push_back(node);
  }
  static_cast<void>(choose_listening(hosts, all.plan.agents));  // each edge says its address
  for (auto* const node : nodes) node->listen.wanted = node->host.listen;
}

/// Ends its listening, so that it can begin again elsewhere.
void stop_listening(visited& node) {
  if (!node.listener.address.empty()) node.visit->end();
  node.listener = {};
  node.who.listening_error.clear();
}

/// Has a node whose facts are known listen, if it does not yet where it is to.
void have_it_listen(visited& node, const agent_plan& plan) {
  if (node.is_met_elsewhere || !node.who.facts || lacks_listening(*node.who.facts, plan)) return;
  if (node.listens_as == node.listen) return;
  stop_listening(node);
  node.listens_as = node.listen;
  const auto listens = node.visit->begin(node.listen, limits.listen);
  const auto where =
      listens.error.empty() ? decode_edge(listens.lines) : fail(errc::io_failed, listens.error);
  if (where)
    node.listener = *where;
  else
    node.who.listening_error = where.error().text;
}

/// What one node's process finds on the way to another. `examiner`: that serves nothing else now.
edge_facts probe(visited& from, const visited& to, const requests::probe& what,
                 std::size_t examiner) {
  const auto said = from.visit->ask(what, limits.examine, examiner);
  auto facts = decode_edge(said.lines);
  edge_facts out = facts ? std::move(*facts) : edge_facts{};
  out.from = from.who.name;
  out.to = to.who.name;
  out.address = to.listener.address;
  out.port_range = to.listener.port_range;
  out.ours.by = what.transport;
  if (!said.error.empty() && out.ours.error.empty()) out.ours.error = said.error;
  return out;
}

/// The machine of each node: where figures would disturb each other.
std::vector<std::string> machines_of(const std::vector<visited>& nodes) {
  std::vector<std::string> out;
  for (const auto& node : nodes) {
    const bool is_known = node.is_seen && node.who.facts && !node.who.facts->machine.empty();
    out.push_back(is_known ? node.who.facts->machine : node.host.name);
  }
  return out;
}

/// The edges that can be probed now, and what is known of each.
struct probing {
  tour& all;
  std::vector<edge> edges;
  std::vector<edge_facts> known;

  /// Begins to find out about one, by its place.
  std::future<void> begin(std::size_t which, bool only_tries) {
    return std::async(std::launch::async, [this, which, only_tries] {
      auto& from = all.nodes[edges[which].first];
      const auto& to = all.nodes[edges[which].second];
      known[which] = probe(from, to, {all.transport, to.listener.address, only_tries}, which);
    });
  }

  /// Measures those of these of which no failure is known.
  void measure(std::vector<std::size_t> which) {
    std::erase_if(which, [this](std::size_t i) { return !known[i].ours.error.empty(); });
    std::vector<edge> those;
    for (const auto i : which) those.push_back(edges[i]);
    for (const auto& round : rounds_to_measure(those, machines_of(all.nodes))) {
      std::vector<std::future<void>> measured;
      for (const auto i : round) measured.push_back(begin(which[i], false));
      wait_for(measured);
    }
  }
};

/// Whether an edge can be probed now. What a node lacks is its own finding.
bool is_open(const tour& all, const edge& each, const std::vector<edge_facts>& known) {
  const auto& from = all.nodes[each.first];
  const auto& to = all.nodes[each.second];
  if (!from.is_seen || !to.is_seen || !from.who.facts || !to.who.facts) return false;
  return !to.listener.address.empty() && std::ranges::none_of(known, [&](const edge_facts& of) {
    return of.from == from.who.name && of.to == to.who.name;
  });
}

/// Of the edges of which nothing is known. First sees which of them work, all at once, for each
/// that does not takes seconds to show it; meanwhile those that do are measured.
std::vector<edge_facts> probe_edges(tour& all, const std::vector<edge_facts>& known) {
  probing at{all, all.edges, {}};
  std::erase_if(at.edges, [&](const edge& each) { return !is_open(all, each, known); });
  at.known.resize(at.edges.size());
  std::vector<std::future<void>> tries;
  // Inside a machine there is no network that could let some pass.
  if (all.transport != name_of(messages::link_transport::shm))
    for (std::size_t i = 0; i < at.edges.size(); ++i) tries.push_back(at.begin(i, true));
  const auto soon = std::chrono::steady_clock::now() + limits.edge_word;
  std::vector<std::size_t> ready, silent;
  for (std::size_t i = 0; i < at.edges.size(); ++i) {
    const bool waits = !tries.empty() && tries[i].wait_until(soon) != std::future_status::ready;
    (waits ? silent : ready).push_back(i);
  }
  at.measure(std::move(ready));
  for (const auto i : silent) tries[i].get();
  at.measure(std::move(silent));
  return std::move(at.known);
}

/// Has the nodes that are seen listen, and adds what is found out about the edges between them of
/// which nothing is known, or whose node listens elsewhere now.
void meet(tour& all, std::vector<edge_facts>& known) {
  choose_networks(all);
  for_each_at_once(seen(all), [&all](visited& node) { have_it_listen(node, all.plan); });
  std::erase_if(known, [&all](const edge_facts& each) {
    return std::ranges::any_of(all.nodes, [&each](const visited& node) {
      return node.who.name == each.to && node.listener.address != each.address;
    });
  });
  std::ranges::move(probe_edges(all, known), std::back_inserter(known));
}

/// Whether it may take long to reach, for reasons that are not this machine's.
bool is_elsewhere(const visited& node) {
  return node.way.valid() && (node.is_awaited || !node.host.host.empty());
}

}  // namespace

std::vector<way_to_node> begin_to_reach(const agent_plan& plan, const std::string& trainer,
                                        std::size_t examiners) {
  const auto shared = std::make_shared<const agent_plan>(plan);
  const auto begin = [&](agent_host host) {
    return std::async(std::launch::async, [shared, examiners, host = std::move(host)] {
      return node_visit::open(*shared, host, examiners);
    });
  };
  std::vector<way_to_node> ways;
  agent_host own;
  own.name = trainer;
  ways.push_back(begin(std::move(own)));
  const auto& hosts = plan.agents.hosts;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    ways.push_back(plan.unreached.contains(i) ? way_to_node() : begin(hosts[i]));
  return ways;
}

std::vector<edge_facts> visit_all(tour& all, std::chrono::steady_clock::time_point begun) {
  std::vector<visited*> here, late;
  for (auto& node : all.nodes) {
    const bool is_late = is_elsewhere(node) &&
                         node.way.wait_until(begun + limits.slow_node) != std::future_status::ready;
    (is_late ? late : here).push_back(&node);
  }
  auto under_way = begin_for_each(late, examine_node);
  for_each_at_once(here, examine_node);
  for (auto* const node : here) node->is_seen = true;
  std::vector<edge_facts> known;
  meet(all, known);
  wait_for(under_way);
  for (auto* const node : late) node->is_seen = true;
  if (std::ranges::any_of(late, [](const auto* node) { return node->who.facts.has_value(); }))
    meet(all, known);
  return known;
}

void end_visits(tour& all) {
  std::vector<visited*> nodes;
  for (auto& node : all.nodes) nodes.push_back(&node);
  for_each_at_once(nodes, [](visited& node) { node.visit.reset(); });
}

}  // namespace troupe::cluster::doctor
