#include "cluster/training/stages/stage_places.hpp"

#include <cstddef>
#include <string>

#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/listening_core.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"
#include "messages/base/log.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// What carries frames between the processes that are met there.
messages::link_transport carrier_between(const std::string& one, const std::string& other,
                                         const link_config& config) {
  using messages::meeting_place;
  return messages::meet_inside(meeting_place::parse(one), meeting_place::parse(other))
             ? messages::link_transport::shm
             : transport_of(config);
}

std::string address_of_place(node_group& group, std::size_t place) {
  return group.node().address_of(group.hosts().at(place)).address;
}

}  // namespace

void tell_edges(node_group& group, const placement_tables& config, const link_config& link) {
  const auto places = node_of_stages(config);
  if (!places) return;  // there are no nodes
  const auto names = stage_names_of(config.pipeline);
  const auto stage = [&](std::size_t i) {
    return names.at(i) + " (" + config.cluster.nodes[places->at(i)].name + ", " +
           messages::meeting_place::parse(address_of_place(group, i)).outside + ")";
  };
  for (std::size_t i = 0; i + 1 < places->size(); ++i) {
    if ((i + 1) % config.pipeline.stages == 0) continue;
    const auto carrier =
        carrier_between(address_of_place(group, i), address_of_place(group, i + 1), link);
    log::info(stage(i) + " -> " + stage(i + 1) + ": " + std::string(messages::name_of(carrier)));
  }
}

std::vector<bool> lends_to_trainer(node_group& group, const placement_tables& config,
                                   const link_config& link, bool are_whole) {
  const bool can_lend = are_whole && group.node().memory() != nullptr;
  const auto seats = seats_of_stages(config);
  std::vector<bool> lends;
  for (std::size_t place = 0; place < group.hosts().size(); ++place)
    lends.push_back(can_lend && seats.at(place).device == "cpu" &&
                    carrier_between(group.node().address(), address_of_place(group, place), link) ==
                        messages::link_transport::shm);
  return lends;
}

result<void> check_listening(node_group& group, const placement_tables& config) {
  const auto places = node_of_stages(config);
  if (!places || !is_over_hosts(config.cluster.launch)) return {};
  const auto names = stage_names_of(config.pipeline);
  std::vector<listening> all;
  for (std::size_t i = 0; i < places->size(); ++i) {
    const auto& node = config.cluster.nodes[places->at(i)];
    all.push_back({names.at(i), node.name,
                   address_of_host(host_of_user(node.host)).value_or(node.host),
                   messages::meeting_place::parse(address_of_place(group, i)).outside});
  }
  return check_addresses(all);
}

}  // namespace troupe::cluster
