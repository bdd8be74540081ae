#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/link/frames/bundle.hpp"
#include "messages/link/frames/loans.hpp"
#include "messages/link/frames/outbox.hpp"
#include "messages/link/frames/reassembly.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/seal/handshake.hpp"
#include "messages/link/seal/session.hpp"
#include "messages/link/wire/carrier.hpp"
#include "messages/link/wire/event_queue.hpp"

namespace troupe::messages {

class connection;

/// What the connections of one link share; all of it outlives them.
struct connection_shared {
  const link_options& options;
  buffer_pool& pool;
  link_counters& counters;
  event_queue& events;
  std::vector<connection*>& attention;    ///< Those whose `act` is to be called.
  std::shared_ptr<shared_memory> memory;  ///< Null: nothing is lent, nothing borrowed.
  std::shared_ptr<return_desk> desk;
  std::function<key_share()> new_share;                             ///< For a side that connects.
  wire::cipher_kind cipher = wire::cipher_kind::chacha20_poly1305;  ///< What is faster here.
};

/// One connection, whatever carries it: the proof of the secret, the order of frames, what is in
/// flight, loans and the farewell. A core: it is told what happens, `act` reacts to that, and it
/// gives its orders to its carrier and to the event queue. The clock is an argument. One thread.
///
///   meeting --proved, address told--> up --close()--> closing --flushed--> leaving
///                                     up --farewell, violation--------->  leaving
///   leaving --answered-->      gone
///   (any) --carrier broken-->  gone
///
/// Until the handshake is done, nothing else that the other side sends is looked at. The link's
/// owner gets `on_peer_down` when its own close is answered, otherwise on the way into `leaving` or
/// `gone`.
class connection {
 public:
  using clock = std::chrono::steady_clock;
  using role = handshake::role;

  /// `by` outlives the connection but for its destructor.
  connection(peer_id id, std::string name, role mine, carrier& by, const connection_shared& shared);
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() = default;

  // What the link's owner and its engine want.
  /// Starts a connection; `done` is called with its outcome.
  void connect(clock::time_point deadline, link::connected done);
  /// Takes a connection that came in; `share` may be shown to others too.
  void accept(clock::time_point deadline, const key_share& share);
  void send(std::shared_ptr<outgoing> frame);
  /// What the peer lent is no longer read.
  void give_back(std::uint64_t loan);
  void close(error reason, clock::time_point now);
  /// The link ends: completes everything with errc::cancelled and sends nothing.
  void cancel();
  /// A stranger must make room for another.
  void make_room();

  // What the carrier tells.
  /// A message has come; `handed` came with it.
  void take(const arrived_message& what, const descriptor& handed = {});
  /// A chunk can be received; false: it is not wanted. `bytes` are what the sender has for it.
  [[nodiscard]] bool offer(std::span<const std::byte> header, void* offered, std::uint64_t bytes);
  void sent(sending& what, bool delivered);
  void received(receiving& what, bool arrived);
  /// The carrier has failed, or the other side has left it. `worth_trying`: we had reached it and
  /// it may have had no room for us.
  void broken(const error& why, bool worth_trying = false);
  /// Something on this side failed, for example for lack of memory.
  void break_off(error why);
  /// What arrived breaks a rule of the protocol: "a chunk came eagerly".
  void break_rule(std::string_view what);
  /// What arrived is no message of the protocol, or was changed on its way.
  void break_seal(const std::string& what);
  /// The other side has proved itself and is to get this side's address.
  void say_address();

  /// Has `act` called soon.
  void want_attention();
  /// Reacts to what happened since the last call.
  void act(clock::time_point now);
  /// When `act` is to be called at the latest.
  [[nodiscard]] clock::time_point deadline() const { return std::min(deadline_, dial_at_); }

  [[nodiscard]] peer_id id() const { return id_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_up() const { return state_ == state::up; }
  [[nodiscard]] bool is_gone() const { return state_ == state::gone; }
  /// Whether the other side connected to us and has not proved itself.
  [[nodiscard]] bool is_stranger() const {
    return role_ == role::accepts && state_ == state::meeting && !violation_ && keys() == nullptr;
  }
  /// The keys, once the handshake is done: all that follows is sealed with them.
  [[nodiscard]] const connection_keys* keys() const {
    return handshake_ && handshake_->done() ? &handshake_->keys() : nullptr;
  }
  /// Whether the carrier holds nothing of this object any more.
  [[nodiscard]] bool is_quiet() const { return sends_.empty() && receives_.empty(); }
  [[nodiscard]] bool is_released() const { return state_ == state::gone && is_quiet() && !listed_; }

 private:
  enum class state { meeting, up, closing, leaving, gone };
  struct held_chunk {
    wire::chunk_prefix chunk;
    void* offered = nullptr;
    std::uint64_t bytes = 0;  // that the sender has for it
  };
  struct violation {
    error why;
    std::atomic<std::uint64_t>* counter = nullptr;
    std::optional<refusal> refused;  // before the handshake was done
    bool is_told = true;             // to the other side
  };

  // connection.cpp: the life of a connection
  void start_handshake(const key_share& share);
  void refuse(refusal why);
  void become_up();
  void check_farewell(clock::time_point now);
  void flush_and_leave(clock::time_point now);
  void leave(const error& why, bool answer, clock::time_point now);
  void depart(const error& why, bool answer, clock::time_point now);
  void end(const error& why);
  void lose(const error& why);
  [[nodiscard]] bool dial_later(clock::time_point now);
  void announce_down(const error& why);
  void fail_sends(const error& why);
  void expire(clock::time_point now);
  [[nodiscard]] bool is_sending() const { return state_ == state::up || state_ == state::closing; }
  [[nodiscard]] bool is_receiving() const {
    return (state_ == state::meeting || is_sending()) && !violation_;
  }

  // connection_io.cpp: messages
  template <class Header>
  void post(sending& what, wire::message_id id, Header& header);
  template <class Header>
  void sign_and_post(sending& what, wire::message_id id, Header& header,
                     std::span<const std::byte> covered);
  void say_handshake(const wire::handshake_message& message);
  void say_farewell(const error& why, bool answer);
  void say_memory(wire::memory_kind kind);
  void say_returns();
  void pump();
  void post_single(sending& what);
  void post_gathered();
  void piece_sent(const outbox::piece& piece);
  template <class Header, class Covered>
  std::optional<Header> unseal(std::span<const std::byte> header, Covered covered);
  void take_handshake(std::span<const std::byte> header);
  void take_address(const arrived_message& what);
  void take_frame(const arrived_message& what);
  void take_bundle(const arrived_message& what);
  void take_memory(const arrived_message& what, const descriptor& handed);
  void take_returns(const arrived_message& what);
  void take_farewell(const arrived_message& what);
  result<void> add_frame(const wire::frame_prefix& prefix, std::span<const std::byte> data);
  void borrow(const wire::memory_message& offered, const descriptor& handed);
  void release_frames();
  void receive_held();
  void start_receive(const held_chunk& due, reassembly::destination target);
  void drop_held();
  void turn_down(const error& why);
  void break_off(error why, std::atomic<std::uint64_t>& counter);
  sending& new_send();
  void put_away(sending& what);

  /// Chunks that may wait to be received, more than an honest peer has in flight.
  static constexpr std::size_t most_held = 1 << 14;
  /// Bytes of chunks whose receiving starts before what has come whole is told.
  static constexpr std::uint64_t most_at_once = 4 << 20;

  const peer_id id_;
  const std::string name_;  // for error texts: "host:port"
  const role role_;
  carrier& carrier_;
  const connection_shared& shared_;

  state state_ = state::meeting;
  bool told_up_ = false;  // and not "down" since
  bool listed_ = false;   // in shared_.attention
  clock::time_point deadline_ = clock::time_point::max();
  clock::time_point dial_at_ = clock::time_point::max();
  unsigned dialled_again_ = 0;
  link::connected connected_;
  error close_reason_;
  std::optional<handshake> handshake_;
  std::optional<session> session_;
  std::optional<violation> violation_;
  struct break_news {
    error why;
    bool worth_trying = false;
  };
  std::optional<break_news> broken_;
  std::optional<error> farewell_;  // the peer's reason to leave
  std::array<std::uint64_t, 2> farewell_frames_{};
  bool answered_ = false;   // the peer confirmed our farewell
  bool answering_ = false;  // we confirmed the peer's

  bool offered_ = false;                       // the peer's memory is
  std::shared_ptr<borrowed_memory> borrowed_;  // the same, once it is at hand
  bool at_hand_ = false;                       // ours is, for the peer
  std::optional<lent_tensors> lent_;           // once both are
  std::vector<std::uint64_t> returning_;       // loans that are over and not yet returned

  outbox outbox_;
  bundle gathered_;  // empty but in `pump`
  reassembly reassembly_;
  std::list<sending> sends_;
  std::list<sending> spare_;  // at most one that was sent, for the room that its lists have
  std::list<receiving> receives_;
  std::deque<held_chunk> held_;  // not yet received, or early
};

}  // namespace troupe::messages
