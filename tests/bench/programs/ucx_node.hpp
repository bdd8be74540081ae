#pragma once

#include <memory>
#include <utility>

#include "actors/remote/node.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::bench {

/// A node that listens on this machine's loopback, over UCX. Errors: those of the link.
inline result<std::unique_ptr<actors::node>> start_node(caf::actor_system& system,
                                                        const actors::message_registry& types,
                                                        messages::link_transport transport,
                                                        actors::node_settings settings) {
  return actors::node::start(system, types, std::move(settings), [&](messages::link_events events) {
    return messages::make_link({.transport = transport}, std::move(events));
  });
}

}  // namespace troupe::bench
