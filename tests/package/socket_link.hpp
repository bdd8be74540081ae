#pragma once

#include <memory>

#include "messages/base/error.hpp"
#include "messages/codec/limits.hpp"
#include "messages/link/link.hpp"

namespace own {

/// A transport of one's own: frames over plain sockets of this machine's loopback interface. Peers
/// prove nothing, and nothing is encrypted: whoever can reach the port may speak. Addresses are
/// "127.0.0.1:PORT", and the empty one to listen at is a free port. It passes the conformance suite
/// of links. Errors: io_failed.
[[nodiscard]] troupe::result<std::unique_ptr<troupe::messages::link>> make_socket_link(
    troupe::messages::link_events events, troupe::messages::limits bounds = {});

}  // namespace own
