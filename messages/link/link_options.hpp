#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/codec/limits.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/link.hpp"

namespace troupe::messages {

/// What carries frames between processes, once they have met and proved that they know the secret.
enum class link_transport : std::uint8_t {
  shm,      ///< UCX's shared memory, inside one machine. No port is open at all.
  tcp,      ///< The door's own TCP connection, each byte encrypted and authenticated.
  trusted,  ///< UCX's tcp, InfiniBand or RoCE as they are: whoever reaches their ports can write
            ///< this process's memory.
};

/// "shm", "sealed tcp", "trusted".
[[nodiscard]] constexpr std::string_view name_of(link_transport transport) noexcept {
  switch (transport) {
    case link_transport::shm:
      return "shm";
    case link_transport::tcp:
      return "sealed tcp";
    case link_transport::trusted:
      return "trusted";
  }
  return "unknown";
}

struct link_options {
  link_transport transport = link_transport::tcp;
  /// With tcp and trusted: processes of this machine meet at a second door, over shared memory (see
  /// meeting_place). They use it wherever both have one.
  bool has_inside_door = false;
  limits bounds = {};  ///< Of frames sent and received.

  /// The most bytes for one peer that are handed to the carrier and not delivered; the rest waits
  /// on this side. At least one chunk is always under way. Over TCP a control frame waits for
  /// everything before it in the socket, so the number is small there; over shared memory more
  /// would only fall out of the caches. 0: 1 MiB over tcp, 4 MiB over shm.
  std::uint64_t in_flight_bytes = 0;
  /// Tensors travel in pieces of this size. 0: half of `in_flight_bytes`.
  std::uint64_t chunk_bytes = 0;
  std::uint32_t inline_bytes = 8 << 10;  ///< Tensors up to this in all travel with the header.
  std::size_t pool_bytes = std::size_t{512} << 20;  ///< Unused receive buffers that are kept.

  /// How long to poll after traffic before sleeping, on a core that nobody else wants.
  std::chrono::microseconds spin{50};
  std::chrono::milliseconds handshake_timeout{5'000};  ///< For a peer that connected to us.
  std::chrono::milliseconds linger{2'000};  ///< For a closed peer to confirm, before it is dropped.
  std::uint32_t peers = 1024;               ///< Connections at most.
  /// The most handshakes of peers that connected to us. One more closes the oldest handshake of the
  /// host that has the most of them open; an honest peer whose handshake was closed connects again.
  std::uint32_t handshakes = 128;

  /// What peers must know, as we must. Empty: anybody may connect who reaches a loopback address,
  /// or is the same user of the same machine.
  cluster_secret secret = {};
  /// Whether it may listen at and connect to other than loopback addresses. Needs a secret.
  bool beyond_loopback = false;

  /// Further settings for UCX, as of its environment but without "UCX_": {"NET_DEVICES", "eth0"}.
  std::vector<std::pair<std::string, std::string>> settings = {};
};

/// A link between processes. It has a thread of its own, which sleeps when there is nothing to do.
/// Addresses are "host:port" (a missing host means loopback) or, over shm, "unix:PATH"; the empty
/// one to listen at is a free port of loopback, or a fresh name in a folder that only this user
/// enters. With a second door `listen` takes the address of the first and gives both, and `connect`
/// takes either; where the second cannot be reached, it goes to the first and warns. Forked
/// children must not use a link of their parent. Errors: transport_missing, io_failed; bad_config
/// without the secret it needs.
[[nodiscard]] result<std::unique_ptr<link>> make_link(link_options options, link_events events);

}  // namespace troupe::messages
