#include "cluster/training/stages/joined_listening.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/future.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {

joined_listening::joined_listening(node_group& group, const cluster_config& cluster)
    : group_(group), cluster_(cluster), ask_(group.requester()) {}

result<void> joined_listening::arrange() {
  if (cluster_.launch != launch_way::none) return {};
  const auto told = ask_new();
  if (!told) return tl::unexpected(told.error());
  const bool is_replacing = std::exchange(has_chosen_, true);
  if (!is_replacing) choose(*told);
  for (const auto& each : *told) {
    if (const auto wanted = wanted_of(each); !wanted.empty())
      if (auto moved = move(each, wanted); !moved) {
        if (!is_replacing || moved.error().code != errc::address_unavailable) return moved;
        const error unfit{errc::peer_lost, moved.error().text};
        group_.lose(each.place, unfit);  // so that another is waited for
        return tl::unexpected(unfit);
      }
    arranged_.insert(each.name);
  }
  return {};
}

/// Where a stage is to listen instead; empty: it stays, as one does that has come later and whose
/// host is not in the network that the others share.
std::string joined_listening::wanted_of(const stage& which) const {
  if (!network_ || !which.may_move || network_->contains(which.at.host)) return "";
  const auto& named = cluster_.network;
  return named.empty() ? own_address_in(which.at, *network_).value_or("") : named;
}

result<std::vector<joined_listening::stage>> joined_listening::ask_new() {
  const auto names = group_.names();
  std::vector<std::size_t> places;
  std::vector<actors::future<actors::interfaces_told>> answers;
  for (std::size_t place = 0; place < names.size(); ++place) {
    if (arranged_.contains(names[place])) continue;
    places.push_back(place);
    answers.push_back(ask_.request<actors::interfaces_told>(
        caf::actor_cast<actors::host_actor>(group_.hosts().at(place)), actors::ask_interfaces{},
        actors::usual_deadlines.join));
  }
  std::vector<stage> out;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto told = answers[i].get();
    if (!told) return tl::unexpected(told.error());
    const auto met = group_.node().address_of(group_.hosts().at(places[i])).address;
    const auto host = host_of(messages::meeting_place::parse(met).outside);
    out.push_back({places[i], names[places[i]], {host, told->addresses}, told->may_move});
  }
  return out;
}

void joined_listening::choose(const std::vector<stage>& all) {
  network_ = network_range::parse(cluster_.network);
  if (network_ || !std::ranges::all_of(all, &stage::may_move)) return;
  std::vector<listening_node> nodes;
  for (const auto& each : all) nodes.push_back(each.at);
  const auto trainer = host_of(messages::meeting_place::parse(group_.node().address()).outside);
  if (kind_of(trainer) == address_kind::any) return;  // nobody says in which networks it is met
  const auto found = choose_network(nodes, trainer);
  if (!found) return;
  network_ = found->range;
  const auto is_there = [&](const auto& each) { return network_->contains(each.at.host); };
  if (!std::ranges::all_of(all, is_there)) log::info(words_on_network(*network_, trainer));
}

result<void> joined_listening::move(const stage& which, const std::string& wanted) {
  const auto moved = ask_.request<actors::listens_there>(
                             caf::actor_cast<actors::host_actor>(group_.hosts().at(which.place)),
                             actors::listen_there{wanted}, actors::usual_deadlines.join)
                         .get();
  if (moved) {
    group_.node().note_address(which.name, moved->address);
    return {};
  }
  const auto& why = moved.error();
  if (why.code == errc::peer_lost) return tl::unexpected(why);  // it says whose it is
  const bool is_of_key = why.code == errc::address_unavailable && !cluster_.network.empty();
  return tl::unexpected(
      error_about(which.name + ": " + (is_of_key ? "network (in [cluster]) " : "") + wanted, why));
}

}  // namespace troupe::cluster
