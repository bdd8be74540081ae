#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/link/buffer_pool.hpp"
#include "messages/link/event_queue.hpp"
#include "messages/link/outbox.hpp"
#include "messages/link/reassembly.hpp"
#include "messages/link/simulated_state.hpp"

namespace troupe::messages {

/// What the peers of one simulated node share; all of it outlives them.
struct simulated_shared {
  const limits& bounds;
  buffer_pool& pool;
  link_counters& counters;
  event_queue& events;
};

/// One end of a simulated connection: the protocol of ucx_peer without UCX.
///
///   connecting --greeting--> up --close()--> closing --flushed--> leaving --answered--> gone
///   accepted as up                --farewell, violation-------->   leaving
///   (any) --connection broken--> gone
///
/// The owner of the link is told "down" when its own close is answered, else on the way into
/// `leaving` or `gone`.
class simulated_peer {
 public:
  enum class state { connecting, up, closing, leaving, gone };

  simulated_peer(peer_id id, std::string name, unsigned end,
                 std::shared_ptr<simulated_connection> connection, const simulated_shared& shared);

  void connect(link::connected done) { connected_ = std::move(done); }
  void accept();
  void send(std::shared_ptr<outgoing> frame) { outbox_.push(std::move(frame)); }
  void close(error reason);
  /// The link ends: completes everything with errc::cancelled.
  void cancel();

  void take(const simulated_message& what);
  void broken(const error& why);
  /// A connect, or a farewell, has waited long enough.
  void connect_expired();
  void linger_expired();
  void piece_left(const outbox::piece& piece);

  /// Acts on what happened since the last call.
  void settle();

  [[nodiscard]] bool is_up() const { return state_ == state::up; }
  [[nodiscard]] bool is_gone() const { return state_ == state::gone; }
  /// Whether `linger_expired` is to be called in a while; asks once.
  [[nodiscard]] bool wants_linger() { return std::exchange(wants_linger_, false); }
  /// Heads that left since the last call, and when: `piece_left` is to be called then.
  [[nodiscard]] auto take_leaving() { return std::exchange(leaving_, {}); }

 private:
  using time = simulated_network::state::time;

  void take_one(const simulated_greeting& what);
  void take_one(const outbox::piece& what);
  void take_one(const simulated_farewell& what);
  void take_one(const simulated_receipt& what);
  result<void> receive_head(const outbox::piece& head);
  result<void> receive_chunk(const outbox::piece& chunk);
  [[nodiscard]] bool is_receiving() const;
  void become_up();
  void release_frames();
  void pump();
  void check_farewell();
  void flush_and_leave();
  void leave(const error& why, bool answer);
  void say_farewell(const error& why, bool answer);
  void lose(const error& why);
  void announce_down(const error& why);
  void fail_sends(const error& why);

  /// As ucx_peer's.
  static constexpr std::size_t most_held = 1024;

  const peer_id id_;
  const std::string name_;
  const unsigned end_;
  const std::shared_ptr<simulated_connection> connection_;
  const simulated_shared& shared_;

  state state_ = state::connecting;
  bool told_up_ = false;  // and not "down" since
  link::connected connected_;
  error close_reason_;
  std::optional<error> violation_;
  std::optional<error> farewell_;
  std::array<std::uint64_t, 2> farewell_frames_{};
  bool answered_ = false;
  bool wants_linger_ = false;

  outbox outbox_;
  reassembly reassembly_;
  std::uint64_t under_way_ = 0;  // pieces sent and not completed
  std::vector<outbox::piece> held_;
  std::vector<std::pair<time, outbox::piece>> leaving_;
};

}  // namespace troupe::messages
