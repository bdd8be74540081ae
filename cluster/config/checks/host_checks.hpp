#pragma once

#include <string>

#include "cluster/hosts/cluster_config.hpp"

namespace troupe::cluster {

/// Checks of the hosts and addresses in a config that ask no other machine. Each returns why a text
/// cannot be right, and what to do; empty: it can be, or is left out.

/// `host` of a node, for what starts its agent. `trainer_is_named`: our own address does not follow
/// from it.
[[nodiscard]] std::string wrong_host(const std::string& text, launch_way launch,
                                     bool trainer_is_named);

/// `address` of one of a cluster's nodes.
[[nodiscard]] std::string wrong_address(const std::string& text, const cluster_config& cluster);

/// A network in which somebody is to listen.
[[nodiscard]] std::string wrong_network(const std::string& text);

/// The trainer's address, [link] listen.
[[nodiscard]] std::string wrong_trainer_address(const std::string& text, launch_way launch);

}  // namespace troupe::cluster
