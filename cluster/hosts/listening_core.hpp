#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/hosts/network_range.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Where a process of a node listens for others.
struct listening {
  std::string process;  ///< "stage-1"
  std::string node;     ///< "beta"
  std::string machine;  ///< The address at which its host was reached.
  std::string address;  ///< "172.17.0.1:40123"

  bool operator==(const listening&) const = default;
};

/// A node whose processes listen wherever other nodes reach them best.
struct listening_node {
  std::string host;                    ///< The address at which its host was reached.
  std::vector<std::string> addresses;  ///< Of its interfaces: see interface_addresses.

  bool operator==(const listening_node&) const = default;
};

/// A network that nodes have in common.
struct common_network {
  network_range range;
  std::vector<std::string> addresses;  ///< Of each node, in it: "10.0.0.2".

  bool operator==(const common_network&) const = default;
};

/// The network in which nodes are to listen for each other where that is another one than their
/// way to the trainer (a numeric address): the one that has all the addresses at which their hosts
/// are reached, or else, where the trainer is in none that they share, the only one that they do.
/// IP version 6 counts where they share none of version 4; and a network in which two hosts have
/// one address, as bridges of containers do, is not shared. nullopt: each listens at the address
/// from which it reaches the trainer.
[[nodiscard]] std::optional<common_network> choose_network(const std::vector<listening_node>& nodes,
                                                           const std::string& trainer);

/// The address of a node in a network; nullopt: none of its interfaces is in that one.
[[nodiscard]] std::optional<std::string> own_address_in(const listening_node& node,
                                                        const network_range& range);

/// The warning about a network in which nodes listen and the trainer does not.
[[nodiscard]] std::string words_on_network(const network_range& range, const std::string& trainer);

/// Whether no two machines listen at one address, as they do where both have a bridge of their own
/// with it: what is sent there stays on the machine that sends it. Errors: address_unavailable
/// naming both, the address and what to do.
[[nodiscard]] result<void> check_addresses(const std::vector<listening>& all);

}  // namespace troupe::cluster
