#include "cluster/hosts/listening_core.hpp"

#include <algorithm>
#include <map>

#include "cluster/hosts/host_addresses.hpp"

namespace troupe::cluster {
namespace {

/// An interface's address, without its prefix, and its network.
struct own_interface {
  std::string address;
  network_range network;
};

std::vector<own_interface> interfaces_of(const listening_node& node) {
  std::vector<own_interface> out;
  for (const auto& each : node.addresses)
    if (const auto network = network_range::around(each))
      out.push_back({each.substr(0, each.find('/')), *network});
  return out;
}

std::optional<std::string> address_within(const std::vector<own_interface>& all,
                                          const network_range& range) {
  const auto found = std::ranges::find(all, range, &own_interface::network);
  return found == all.end() ? std::nullopt : std::optional(found->address);
}

/// Whether two hosts have one address.
bool is_doubled(const std::vector<listening_node>& nodes,
                const std::vector<std::string>& addresses) {
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (addresses[i] == addresses[j] && nodes[i].host != nodes[j].host) return true;
  return false;
}

std::vector<common_network> common_networks(const std::vector<listening_node>& nodes) {
  std::vector<std::vector<own_interface>> all;
  for (const auto& node : nodes) all.push_back(interfaces_of(node));
  std::vector<common_network> out;
  for (const auto& each : all.front()) {
    common_network found{each.network, {}};
    for (const auto& node : all)
      if (auto own = address_within(node, each.network)) found.addresses.push_back(std::move(*own));
    const bool has_all = found.addresses.size() == nodes.size();
    if (has_all && !is_doubled(nodes, found.addresses) &&
        std::ranges::find(out, found.range, &common_network::range) == out.end())
      out.push_back(std::move(found));
  }
  return out;
}

bool is_of_version_6(const common_network& network) {
  return network.range.is_version_6();
}

}  // namespace

std::optional<common_network> choose_network(const std::vector<listening_node>& nodes,
                                             const std::string& trainer) {
  const auto is_alone = [&](const auto& each) { return each.host == nodes.front().host; };
  if (std::ranges::all_of(nodes, is_alone)) return std::nullopt;
  auto shared = common_networks(nodes);
  const auto of_hosts = std::ranges::find_if(shared, [&](const auto& network) {
    return std::ranges::all_of(nodes,
                               [&](const auto& each) { return network.range.contains(each.host); });
  });
  if (of_hosts != shared.end())
    return of_hosts->range.contains(trainer) ? std::nullopt : std::optional(*of_hosts);
  if (std::ranges::any_of(shared, [&](const auto& each) { return each.range.contains(trainer); }))
    return std::nullopt;
  if (!std::ranges::all_of(shared, is_of_version_6)) std::erase_if(shared, is_of_version_6);
  return shared.size() == 1 ? std::optional(shared.front()) : std::nullopt;
}

std::optional<std::string> own_address_in(const listening_node& node, const network_range& range) {
  return address_within(interfaces_of(node), range);
}

std::string words_on_network(const network_range& range, const std::string& trainer) {
  return "stages listen in the network " + range.text() +
         ", which their hosts share and the trainer (" + trainer +
         ") is not in; another is named by `network` in [cluster]";
}

result<void> check_addresses(const std::vector<listening>& all) {
  std::map<std::string, const listening*> known;
  for (const auto& each : all) {
    const auto own = host_of(each.address);
    const auto [place, is_new] = known.try_emplace(own, &each);
    const auto& other = *place->second;
    if (is_new || other.node == each.node || other.machine == each.machine) continue;
    return fail(errc::address_unavailable,
                other.process + " on node " + other.node + " and " + each.process + " on node " +
                    each.node + " both listen at " + own +
                    ", so neither reaches the other there: both hosts have an interface with that "
                    "address, as bridges of containers do; name an address or network that differs "
                    "(address, network in [[node]]; network in [cluster])");
  }
  return {};
}

}  // namespace troupe::cluster
