#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <utility>
#include <variant>

#include "messages/link/link.hpp"

namespace troupe::messages {

/// `link_stats` that one thread writes (several write bytes_in_flight) and any thread reads.
struct link_counters {
  std::atomic<std::uint64_t> frames_sent = 0;
  std::atomic<std::uint64_t> frames_received = 0;
  std::atomic<std::uint64_t> bytes_sent = 0;
  std::atomic<std::uint64_t> bytes_received = 0;
  std::atomic<std::uint64_t> bytes_lent = 0;
  std::atomic<std::uint64_t> bad_frames = 0;
  std::atomic<std::uint64_t> peers = 0;
  std::atomic<std::uint64_t> bad_macs = 0;
  std::atomic<std::uint64_t> replayed_frames = 0;
  std::array<std::atomic<std::uint64_t>, refusal_kinds> refused_handshakes = {};
  /// On a cache line of its own: senders must not take the others from the thread that writes them.
  alignas(64) std::atomic<std::uint64_t> bytes_in_flight = 0;

  /// Adds to a counter that no other thread writes, which needs no atomic addition.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  /// Most frames have no tensors: they leave this one alone.
  void add_in_flight(std::uint64_t tensor_bytes) {
    if (tensor_bytes > 0) bytes_in_flight.fetch_add(tensor_bytes, std::memory_order_relaxed);
  }
  void take_in_flight(std::uint64_t tensor_bytes) {
    if (tensor_bytes > 0) bytes_in_flight.fetch_sub(tensor_bytes, std::memory_order_relaxed);
  }

  [[nodiscard]] std::atomic<std::uint64_t>& refused(refusal why) {
    return refused_handshakes[static_cast<std::size_t>(why)];
  }

  [[nodiscard]] link_stats read() const {
    link_stats out{frames_sent, frames_received, bytes_sent, bytes_received, bytes_in_flight,
                   bytes_lent,  bad_frames,      peers,      bad_macs,       replayed_frames};
    std::ranges::copy(refused_handshakes, out.refused_handshakes.begin());
    return out;
  }
};

/// Whether `close` with this reason waits for nothing.
[[nodiscard]] inline bool believes_dead(const error& reason) {
  return reason.code == errc::peer_lost || reason.code == errc::timed_out;
}

/// The events for a link's owner, in order. Filled where calling the owner would be unsafe (inside
/// UCX, under a lock); the owner is called later, outside. One thread.
class event_queue {
 public:
  explicit event_queue(link_events events) : events_(std::move(events)) {}

  void up(peer_id peer) { waiting_.emplace_back(up_event{peer}); }
  void arrived(peer_id peer, frame&& message) {
    waiting_.emplace_back(std::in_place_type<frame_event>, peer, std::move(message));
  }
  void down(peer_id peer, error why) { waiting_.emplace_back(down_event{peer, std::move(why)}); }
  void refused(error why) { waiting_.emplace_back(refused_event{std::move(why)}); }
  void completed(link::completion done, result<void> how) {
    if (done) waiting_.emplace_back(completed_event{std::move(done), std::move(how)});
  }
  void connected(link::connected done, result<peer_id> how) {
    if (done) waiting_.emplace_back(connected_event{std::move(done), std::move(how)});
  }

  /// Calls the owner with every event. Returns whether there was any.
  bool tell() {
    const bool any = !waiting_.empty();
    while (!waiting_.empty()) {
      std::visit([this](auto& event) { tell_one(event); }, waiting_.front());
      waiting_.pop_front();
    }
    return any;
  }

 private:
  struct up_event {
    peer_id peer;
  };
  struct frame_event {
    frame_event(peer_id from, frame&& what) : peer(from), message(std::move(what)) {}
    peer_id peer;
    frame message;
  };
  struct down_event {
    peer_id peer;
    error why;
  };
  struct refused_event {
    error why;
  };
  struct completed_event {
    link::completion done;
    result<void> how;
  };
  struct connected_event {
    link::connected done;
    result<peer_id> how;
  };

  void tell_one(up_event& event) const {
    if (events_.on_peer_up) events_.on_peer_up(event.peer);
  }
  void tell_one(frame_event& event) const {
    if (events_.on_frame) events_.on_frame(event.peer, std::move(event.message));
  }
  void tell_one(down_event& event) const {
    if (events_.on_peer_down) events_.on_peer_down(event.peer, std::move(event.why));
  }
  void tell_one(refused_event& event) const {
    if (events_.on_refused) events_.on_refused(std::move(event.why));
  }
  void tell_one(completed_event& event) const { event.done(std::move(event.how)); }
  void tell_one(connected_event& event) const { event.done(std::move(event.how)); }

  link_events events_;
  std::deque<std::variant<up_event, frame_event, down_event, refused_event, completed_event,
                          connected_event>>
      waiting_;
};

}  // namespace troupe::messages
