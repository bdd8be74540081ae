#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"
#include "messages/link/refusal.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::messages {

/// What a link reports to its owner. All are called on the link's own thread, one at a time, and
/// must neither block nor throw. For each peer: `on_peer_up`, then any number of `on_frame`, then
/// `on_peer_down` once, unless the link is destroyed before.
struct link_events {
  /// A connection stands, made by us or by the other side. Nothing is known of the peer yet.
  std::function<void(peer_id)> on_peer_up;
  /// A frame has arrived whole. Frames of one lane come in the order they were sent.
  std::function<void(peer_id, frame)> on_frame;
  /// The connection is gone; `error` says why. Sends still in flight have completed with it.
  std::function<void(peer_id, error)> on_peer_down;
  /// An incoming connection was not admitted; `error` says whose and why. Not called for
  /// connections that are turned away unheard: see docs/security.md. May be empty.
  std::function<void(error)> on_refused = {};
};

struct link_stats {
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t bytes_sent = 0;  ///< Headers and tensors, also lent ones.
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_in_flight = 0;  ///< Tensor bytes handed to `send` and not completed.
  std::uint64_t bytes_lent = 0;       ///< Of bytes_sent: what stayed where it was.
  std::uint64_t bad_frames = 0;       ///< Frames that broke the protocol or a limit.
  std::uint64_t peers = 0;            ///< Connected now.
  std::uint64_t bad_macs = 0;         ///< Messages not sealed by the peer; each ended its link.
  std::uint64_t replayed_frames = 0;  ///< Pieces of frames that came again and were dropped.
  std::array<std::uint64_t, refusal_kinds> refused_handshakes = {};  ///< Indexed by `refusal`.

  [[nodiscard]] std::uint64_t refused(refusal why) const {
    return refused_handshakes[static_cast<std::size_t>(why)];
  }
};

/// Moves frames between processes. A resource: one owner, closed by its destructor, which ends the
/// link's thread without a farewell to peers and completes what is in flight with errc::cancelled;
/// peers notice that the link is gone. What its events and completions ask of it while it is being
/// destroyed is dropped, and may never complete. Not to be destroyed from its own events. `send`,
/// `connect`, `close`, `post` and `stats` may be called from any thread, also from the events. The
/// link does not limit how much is handed to `send`: the caller's credits do.
class link {
 public:
  using completion = std::function<void(result<void>)>;
  using connected = std::function<void(result<peer_id>)>;

  link() = default;
  link(const link&) = delete;
  link& operator=(const link&) = delete;
  virtual ~link() = default;

  /// Starts accepting peers and returns the address to connect to. `address` is "host:port" (port
  /// 0: any free one), or empty for whatever suits the link. Called again, the link accepts peers
  /// at the new address instead of the old one; connected peers stay. Errors: address_unavailable,
  /// io_failed without descriptors, after which the old address remains.
  [[nodiscard]] virtual result<std::string> listen(const std::string& address) = 0;

  /// Connects to a listening link; `done` is called on the link's thread, after `on_peer_up`. A
  /// name is resolved in the calling thread. Errors: address_unavailable, timed_out,
  /// version_mismatch, not_admitted.
  virtual void connect(const std::string& address, std::chrono::milliseconds timeout,
                       connected done) = 0;

  /// Sends a frame. Tensor bytes are read where they lie; their owners are held until `done`
  /// (which may be empty) is called on the link's thread. Errors: peer_lost, bad_frame (the frame
  /// exceeds a limit, or a tensor is not where the link `moves` it from, and nothing was sent),
  /// cancelled.
  virtual void send(peer_id peer, frame message, completion done) = 0;

  /// Ends the connection after what was sent before is delivered. The peer sees `on_peer_down` with
  /// peer_lost and the text of `reason`; this side sees it with `reason`.
  /// With the code peer_lost or timed_out the peer is believed dead or hung: nothing is waited for,
  /// and sends in flight fail with `reason` at once.
  virtual void close(peer_id peer, error reason) = 0;

  /// Runs `what` on the link's thread, in the order of the calls and never inside an event. If that
  /// thread is stuck or starved, this is as late as everything else on it. Dropped if the link ends
  /// first.
  virtual void post(std::function<void()> what) = 0;

  [[nodiscard]] virtual link_stats stats() const = 0;

  /// Whether tensors may be sent from that device's memory. If not, the sender copies them to the
  /// host first. A transport that moves such memory itself overrides this.
  [[nodiscard]] virtual bool moves(const device_ref& from) const { return from.is_host(); }

  /// Memory whose floating-point tensors this link lends to peers on the same machine instead of
  /// copying them; null: it copies all. What has been sent must not be written while the payload's
  /// owner is held, which may then be until long after `done`.
  [[nodiscard]] virtual std::shared_ptr<shared_memory> memory() const { return nullptr; }
};

}  // namespace troupe::messages
