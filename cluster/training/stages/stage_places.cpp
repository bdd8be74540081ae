#include "cluster/training/stages/stage_places.hpp"

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/listening_core.hpp"
#include "cluster/membership/launch_choice.hpp"
#include "messages/base/log.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {

void tell_edges(node_group& group, const trainer_config& config) {
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  if (!places) return;  // there are no nodes
  const auto names = stage_names_of(config.pipeline);
  const auto place = [&](std::size_t i) {
    return messages::meeting_place::parse(group.node().address_of(group.hosts().at(i)).address);
  };
  const auto stage = [&](std::size_t i) {
    return names.at(i) + " (" + config.cluster.nodes[places->at(i)].name + ", " + place(i).outside +
           ")";
  };
  for (std::size_t i = 0; i + 1 < places->size(); ++i) {
    if ((i + 1) % config.pipeline.stages == 0) continue;
    const auto carrier = messages::meet_inside(place(i), place(i + 1))
                             ? messages::link_transport::shm
                             : transport_of(config.link);
    log::info(stage(i) + " -> " + stage(i + 1) + ": " + std::string(messages::name_of(carrier)));
  }
}

result<void> check_listening(node_group& group, const trainer_config& config) {
  const auto places = node_of_stages(config, std::thread::hardware_concurrency());
  if (!places || !is_over_hosts(config.cluster.launch)) return {};
  const auto names = stage_names_of(config.pipeline);
  std::vector<listening> all;
  for (std::size_t i = 0; i < places->size(); ++i) {
    const auto& node = config.cluster.nodes[places->at(i)];
    all.push_back(
        {names.at(i), node.name, address_of_host(host_of_user(node.host)).value_or(node.host),
         messages::meeting_place::parse(group.node().address_of(group.hosts().at(i)).address)
             .outside});
  }
  return check_addresses(all);
}

}  // namespace troupe::cluster
