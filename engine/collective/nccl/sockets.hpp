#pragma once

#include <optional>

#include "engine/collective/reach.hpp"
#include "messages/base/error.hpp"

/// NCCL neither authenticates nor encrypts, and reads once in a process, with its first
/// communicator, which interface its sockets are on.
namespace troupe::engine::nccl {

using reach = socket_reach;

/// Before each use of NCCL's sockets; the first claim of a process decides. That of loopback sets
/// NCCL_SOCKET_IFNAME, whatever it was, and takes NCCL_COMM_ID away, which would name another
/// address; it changes the environment, so no other thread should read that meanwhile. Later claims
/// of the network get what there is, which suffices for ranks of this machine. Errors:
/// transport_missing, where loopback is claimed and the sockets are on the network already.
/// Thread-safe beside itself.
[[nodiscard]] result<void> claim_sockets(reach wanted);

/// What this process's first claim decided; empty: there was none.
[[nodiscard]] std::optional<reach> sockets_of_process();

}  // namespace troupe::engine::nccl
