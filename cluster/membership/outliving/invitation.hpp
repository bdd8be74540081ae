#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "messages/base/error.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::cluster {

/// What a process needs to join a trainer that has not started it. It travels over a socket pair
/// that both have inherited, as a secret does through a pipe (secret_pipe.hpp).
struct invitation {
  std::string trainer;         ///< Where the trainer's node listens.
  std::uint8_t transport = 0;  ///< A cluster::transport.
  std::uint8_t network = 0;    ///< A cluster::network.
  messages::cluster_secret secret = {};
};

/// Does not wait. Errors: peer_lost where nobody is left to read it, io_failed.
[[nodiscard]] result<void> send_invitation(int socket, const invitation& what);

/// Waits for one. Nothing: no other will come, since nobody has the other end. Errors: bad_frame,
/// io_failed.
[[nodiscard]] result<std::optional<invitation>> receive_invitation(int socket);

/// Tells whoever has invited to this trainer why nobody has joined it, or has left it. Does not
/// wait; nothing happens where nobody is left to read it.
void decline_invitation(int socket, const std::string& trainer, const std::string& why);

/// What was told last of an invitation to this trainer; empty: nothing. Takes all that was told, so
/// that there is room for more. Does not wait.
[[nodiscard]] std::string why_declined(int socket, const std::string& trainer);

}  // namespace troupe::cluster
