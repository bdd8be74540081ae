#pragma once

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "messages/link/loopback/loopback.hpp"

namespace troupe::tests {

inline constexpr std::chrono::seconds patience{60};

/// A node of its own actor system, over a loopback link with these limits.
struct limited_node {
  limited_node(const std::string& name, const messages::loopback_network& network,
               const actors::message_registry& types, const messages::limits& bounds)
      : system(config) {
    auto started = actors::node::start(
        system, types, {.name = name}, [&network, &bounds](messages::link_events events) {
          return messages::make_loopback_link(network, std::move(events), bounds);
        });
    REQUIRE(started);
    node = std::move(*started);
  }

  template <class Handle>
  void publish(const std::string& name, const Handle& actor) {
    node->publish(name, caf::actor_cast<caf::strong_actor_ptr>(actor));
  }

  /// This node's handle to what another one has published.
  template <class Handle>
  Handle find(const limited_node& other, const std::string& name) {
    const auto there = node->join(other.node->address(), patience);
    REQUIRE(there);
    const auto found = node->find(*there, name, patience);
    REQUIRE(found);
    return caf::actor_cast<Handle>(*found);
  }

  actors::system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
};

}  // namespace troupe::tests
