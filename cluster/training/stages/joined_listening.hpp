#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "cluster/hosts/cluster_config.hpp"
#include "cluster/hosts/listening_core.hpp"
#include "cluster/hosts/network_range.hpp"
#include "cluster/membership/node_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where stages listen that others start (`launch = "none"`). They join one after another, and each
/// listens where it reaches the trainer; once all have, the network that their hosts share is known
/// (see choose_network), and they are told to listen there, or in the one that [cluster] names. One
/// that was started with --listen stays where it is, and then no network is looked for. Of other
/// runs nothing is asked. Used by one thread.
class joined_listening {
 public:
  /// Both outlive it.
  joined_listening(node_group& group, const cluster_config& cluster);

  /// Has each new stage listen where the others reach it: all stages the first time, and then those
  /// that have taken the place of lost ones, before they are built. After an error the rest follow
  /// the next time. Errors: address_unavailable naming the stage and the key, where its host is not
  /// in the network that [cluster] names; io_failed naming the stage, where it cannot open a
  /// socket; peer_lost, also for a replacement on such a host, which is ended.
  [[nodiscard]] result<void> arrange();

 private:
  /// A stage's host, as its process tells it.
  struct stage {
    std::size_t place = 0;
    std::string name;
    listening_node at;
    bool may_move = false;
  };

  [[nodiscard]] result<std::vector<stage>> ask_new();
  void choose(const std::vector<stage>& all);
  [[nodiscard]] std::string wanted_of(const stage& which) const;
  [[nodiscard]] result<void> move(const stage& which, const std::string& wanted);

  node_group& group_;
  const cluster_config& cluster_;
  actors::requester ask_;
  bool has_chosen_ = false;
  std::optional<network_range> network_;  // named, or shared; nullopt: each stays where it is
  std::set<std::string> arranged_;        // by name, which a replacement has of its own
};

}  // namespace troupe::cluster
