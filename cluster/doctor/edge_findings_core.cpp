#include <algorithm>
#include <cstdlib>

#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/mtu_words.hpp"
#include "cluster/launch/agents/clock_words.hpp"
#include "messages/base/format.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::int64_t most_clock_difference_ns = second_ns;

using findings = std::vector<finding>;

std::string rate_text(double megabytes) {
  return format(megabytes < 10 ? "%.1f MB/s" : "%.0f MB/s", megabytes);
}

std::string figures(const flow_facts& of) {
  return length_of_time(static_cast<std::int64_t>(of.round_trip_us * 1000)) + ", " +
         rate_text(of.megabytes_per_second);
}

/// The same two nodes, connecting the other way.
const edge_facts* opposite(const std::vector<edge_facts>& edges, const edge_facts& of) {
  const auto found = std::ranges::find_if(edges, [&of](const edge_facts& each) {
    return each.from == of.to && each.to == of.from && each.from != each.to;
  });
  return found == edges.end() ? nullptr : &*found;
}

std::string host_part(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

finding unconnected(const std::vector<edge_facts>& edges, const edge_facts& edge,
                    const std::string& where) {
  const auto* const back = opposite(edges, edge);
  if (back != nullptr && host_part(back->address) == host_part(edge.address))
    return {severity::error, "edge", where,
            edge.from + " and " + edge.to + " both listen at " + host_part(edge.address) + ", so " +
                edge.from + " cannot connect to " + edge.to + " there (" + edge.ours.error + ")",
            "both hosts have an interface with that address, as bridges of containers do: name an "
            "address or network that differs (address, network in [[node]])"};
  std::string text = edge.from + " cannot connect to " + edge.to + " at " + edge.address + " (" +
                     edge.ours.error + ")";
  std::string remedy = "let TCP from " + edge.from + " in on " + edge.to + ", to its free ports (" +
                       edge.port_range + ")";
  if (back != nullptr && back->is_connected) {
    text += "; the other way, " + edge.to + " to " + edge.from + ", is open";
    remedy += ": see the firewall of " + edge.to + " for what comes in, and that of " + edge.from +
              " for what goes out";
  } else {
    remedy += ": see the firewalls of both and between them, and whether " + edge.address +
              " is an address that " + edge.from +
              " reaches (address or network in the [[node]] of " + edge.to + ")";
  }
  return {severity::error, "edge", where, text, remedy};
}

finding edge_finding(const std::vector<edge_facts>& edges, const edge_facts& edge) {
  const std::string where = edge.from + " -> " + edge.to;
  if (!edge.is_connected) return unconnected(edges, edge, where);
  if (edge.ours.round_trip_us == 0)
    return {severity::error, "edge", where,
            "they meet, but a message of 8 bytes gets no answer: " + edge.ours.error,
            "see what is between them: a proxy, or a firewall that looks into connections"};
  if (edge.ours.megabytes_per_second == 0)
    return {severity::error, "edge", where, large_ones_do_not + edge.ours.error, lower_the_mtu};
  std::string text = edge.ours.by + ", " + figures(edge.ours);
  if (edge.raw.megabytes_per_second > 0)
    text += " (" + edge.raw.by + ": " + figures(edge.raw) + ")";
  else if (!edge.raw.error.empty())
    text += " (below it: " + edge.raw.error + ")";
  return {severity::ok, "edge", where, text, ""};
}

/// How far a node's clock is from the trainer's, at least; 0: perhaps not at all.
struct offset {
  std::int64_t ahead_ns = 0;
  std::int64_t error_ns = 0;
};

/// Of an edge where there is one between the two, else of when the facts were asked and came.
offset offset_of(const patient& node, const std::string& trainer,
                 const std::vector<edge_facts>& edges) {
  for (const auto& edge : edges) {
    if (!edge.clock_ns) continue;
    if (edge.from == node.name && edge.to == trainer) return {-*edge.clock_ns, edge.clock_error_ns};
    if (edge.from == trainer && edge.to == node.name) return {*edge.clock_ns, edge.clock_error_ns};
  }
  const auto& facts = *node.facts;
  const auto half = (facts.answered_ns - facts.asked_ns) / 2;
  return {facts.clock_ns - facts.asked_ns - half, half};
}

/// Versions that two nodes do not share: "UCX 1.13.1 and not 1.15.0".
std::string differences(const std::map<std::string, std::string>& these,
                        const std::map<std::string, std::string>& those, std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (const auto& [name, value] : these) {
    const auto other = those.find(name);
    if (other == those.end() || other->second == value || name == "Linux") continue;
    if (++count <= most)
      text += (text.empty() ? "" : ", ") + name + " " + value + " and not " + other->second;
  }
  return count <= most ? text : text + " and " + std::to_string(count - most) + " more";
}

}  // namespace

findings edge_findings(const std::vector<edge_facts>& edges) {
  findings out;
  for (const auto& edge : edges) out.push_back(edge_finding(edges, edge));
  return out;
}

findings clock_findings(const examination& all) {
  findings out;
  if (all.nodes.empty()) return out;
  const auto& trainer = all.nodes.front().name;
  for (const auto& node : all.nodes) {
    if (!node.facts || node.name == trainer) continue;
    const auto far = offset_of(node, trainer, all.edges);
    const std::string within = " (within " + length_of_time(far.error_ns) + ")";
    if (std::abs(far.ahead_ns) - far.error_ns <= most_clock_difference_ns)
      out.push_back({severity::ok, "clock", node.name, words_on_clock(far.ahead_ns) + within, ""});
    else
      out.push_back({severity::warning, "clock", node.name,
                     words_on_far_clock(far.ahead_ns, within), set_the_clock});
  }
  return out;
}

findings version_findings(const std::vector<patient>& nodes) {
  findings out;
  const patient* first = nullptr;
  for (const auto& node : nodes) {
    if (!node.facts) continue;
    if (first == nullptr) {
      first = &node;
      std::string text;
      for (const auto& [name, value] : node.facts->versions)
        text += (text.empty() ? "" : ", ") + name + " " + value;
      out.push_back({severity::ok, "versions", node.name, text, ""});
      continue;
    }
    constexpr std::size_t most_named = 4;
    auto text = differences(node.facts->versions, first->facts->versions, most_named);
    const auto libraries = differences(node.facts->libraries, first->facts->libraries, most_named);
    if (!libraries.empty()) text += (text.empty() ? "builds of " : "; builds of ") + libraries;
    if (text.empty())
      out.push_back({severity::ok, "versions", node.name, "as on " + first->name, ""});
    else
      out.push_back({severity::warning, "versions", node.name,
                     "other libraries than on " + first->name + ": " + text,
                     "install the same packages on both, or the results may differ in their last "
                     "bits"});
  }
  return out;
}

}  // namespace troupe::cluster::doctor
