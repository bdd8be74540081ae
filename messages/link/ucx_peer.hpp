#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "messages/link/bundle.hpp"
#include "messages/link/event_queue.hpp"
#include "messages/link/loans.hpp"
#include "messages/link/outbox.hpp"
#include "messages/link/reassembly.hpp"
#include "messages/link/session.hpp"
#include "messages/link/ucx_handles.hpp"

namespace troupe::messages {

class ucx_peer;

/// What the peers of one link share; all of it outlives them.
struct ucx_shared {
  const ucx_options& options;
  buffer_pool& pool;
  link_counters& counters;
  event_queue& events;
  std::vector<ucx_peer*>& attention;      ///< Peers whose `settle` is to be called.
  std::shared_ptr<shared_memory> memory;  ///< Null: nothing is lent, nothing borrowed.
  std::shared_ptr<return_desk> desk;
  ucp_worker_h worker = nullptr;
};

/// One connection: its UCX endpoint, the protocol spoken over it and what is in flight. Used by the
/// link's thread only. UCX's callbacks record what happened; `settle`, called outside of them,
/// acts.
///
///   connecting --handshake--> up --close()--> closing --flushed--> leaving --answered--> gone
///   accepted ---handshake-->  up --farewell, violation--------->   leaving
///   (any) --endpoint failed--> gone
///
/// Until the handshake is done nothing else that the peer sends is looked at.
///
/// The owner of the link is told "down" when its own close is answered, else on the way into
/// `leaving` or `gone`.
class ucx_peer {
 public:
  using clock = std::chrono::steady_clock;
  enum class state { connecting, accepted, up, closing, leaving, gone };

  ucx_peer(peer_id id, std::string name, const ucx_shared& shared);
  ucx_peer(const ucx_peer&) = delete;
  ucx_peer& operator=(const ucx_peer&) = delete;
  ~ucx_peer() = default;  // after its endpoint is closed or the worker destroyed

  /// Starts a connection; `done` hears how it ends.
  void connect(const ucx::address& where, clock::time_point deadline, link::connected done);
  /// Takes a connection that came in.
  void accept(ucp_conn_request_h request, clock::time_point deadline);

  void send(std::shared_ptr<outgoing> frame);
  /// What the peer lent is no longer read.
  void give_back(std::uint64_t loan);
  void close(error reason, clock::time_point now);
  /// The link ends: completes everything with errc::cancelled and tells nobody.
  void cancel();

  // Active Messages from this peer. Their result is for UCX.
  ucs_status_t take_handshake(const void* header, std::size_t bytes);
  ucs_status_t take_frame(const void* header, std::size_t header_bytes,
                          std::span<const std::byte> data);
  ucs_status_t take_bundle(const void* header, std::size_t header_bytes,
                           std::span<const std::byte> data);
  ucs_status_t take_chunk(const void* header, std::size_t header_bytes, void* data,
                          std::size_t bytes, bool rendezvous);
  ucs_status_t take_memory(const void* header, std::size_t header_bytes);
  ucs_status_t take_returns(const void* header, std::size_t header_bytes,
                            std::span<const std::byte> loans);
  ucs_status_t take_farewell(const void* header, std::size_t header_bytes,
                             std::span<const std::byte> text);
  ucs_status_t take_unknown();
  /// A handler failed on this side, as when memory is short.
  void break_off(error why);

  /// Has `settle` called soon.
  void want_attention();
  /// Acts on what happened since the last call.
  void settle(clock::time_point now);

  [[nodiscard]] peer_id id() const { return id_; }
  [[nodiscard]] ucp_ep_h endpoint() const { return endpoint_; }
  [[nodiscard]] bool is_up() const { return state_ == state::up; }
  [[nodiscard]] bool is_gone() const { return state_ == state::gone; }
  /// Came to us and has not been admitted.
  [[nodiscard]] bool is_stranger() const { return accepted_ && !was_up_ && !is_gone(); }
  /// UCX knows nothing of this object any more.
  [[nodiscard]] bool is_released() const;
  /// Destroying the worker under this peer is safe.
  [[nodiscard]] bool may_be_destroyed() const;
  /// To be called before the worker is destroyed, which asserts that nobody waits for an endpoint's
  /// close any more.
  void give_up_closing();
  /// When `settle` is to be called at the latest.
  [[nodiscard]] clock::time_point deadline() const { return deadline_; }

 private:
  struct send_op {
    ucx_peer* peer = nullptr;
    std::vector<outbox::piece> pieces;  // several: a bundle; none: a handshake or a farewell
    std::vector<std::byte> bundled;     // its data
    union {
      ucx::frame_prefix frame;
      ucx::bundle_prefix bundle;
      ucx::chunk_prefix chunk;
      ucx::handshake_message handshake;
      ucx::farewell farewell;
      ucx::memory_message memory;
      ucx::returns_prefix returns;
    } header{};
    std::string text;
    std::vector<std::uint64_t> loans;
    std::list<send_op>::iterator self;
  };
  struct receive_op {
    ucx_peer* peer = nullptr;
    ucx::chunk_prefix chunk;
    std::shared_ptr<void> owner;
    std::list<receive_op>::iterator self;
  };
  struct held_chunk {
    ucx::chunk_prefix chunk;
    void* descriptor = nullptr;
    std::uint64_t bytes = 0;  // that the sender has for it
  };
  struct violation {
    error why;
    std::atomic<std::uint64_t>* counter = nullptr;
    std::optional<refusal> refused;  // before the handshake was done
  };

  // ucx_peer.cpp: the life of a connection
  void create_endpoint(ucp_ep_params_t& params);
  void start_handshake(handshake::role mine);
  void refuse(refusal why);
  void become_up();
  void check_farewell(clock::time_point now);
  void flush_and_leave(clock::time_point now);
  void leave(const error& why, bool answer, clock::time_point now);
  void depart(const error& why, bool answer, clock::time_point now);
  void lose(const error& why);
  void announce_down(const error& why);
  void fail_sends(const error& why);
  void release_tensors();
  void forget_memory();
  void say_handshake(const ucx::handshake_message& message);
  void say_farewell(const error& why, bool answer);
  void close_endpoint();
  void expire(clock::time_point now);
  [[nodiscard]] error lost_error(ucs_status_t status) const;
  [[nodiscard]] bool is_tcp() const;
  [[nodiscard]] bool is_quiet() const;  // no request of UCX's is under way
  static void on_endpoint_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_closed(void* request, ucs_status_t status, void* self);

  // ucx_peer_io.cpp: messages
  void pump();
  void post_piece(outbox::piece piece);
  void post_gathered();
  void say_memory(ucx::memory_kind kind);
  void borrow(const ucx::memory_message& offered);
  void say_returns();
  result<void> add_frame(const ucx::frame_prefix& prefix, std::span<const std::byte> data);
  void post(send_op& op, unsigned id, const void* header, std::size_t header_bytes,
            const void* data, std::size_t bytes, unsigned flags);
  send_op& new_send();
  void finish_send(send_op& op, ucs_status_t status);
  void piece_sent(const outbox::piece& piece);
  void finish_receive(receive_op& op, ucs_status_t status);
  void release_frames();
  ucs_status_t hold_chunk(const ucx::chunk_prefix& chunk, void* descriptor, std::uint64_t bytes);
  result<void> take_eager(const ucx::chunk_prefix& chunk, std::span<const std::byte> data);
  void receive_held();
  void start_receive(const held_chunk& due, reassembly::destination target);
  void drop_held();
  template <class Prefix, class Covered>
  std::optional<Prefix> unseal(const void* header, std::size_t bytes, Covered covered);
  void turn_down(const error& why);
  void break_off(error why, std::atomic<std::uint64_t>& counter);
  [[nodiscard]] bool is_receiving() const;
  static void on_sent(void* request, ucs_status_t status, void* op);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* op);

  /// Chunks that may wait to be received, more than an honest peer has in flight.
  static constexpr std::size_t most_held = 1 << 14;
  /// Bytes of chunks whose receiving starts before what has come whole is told.
  static constexpr std::uint64_t most_at_once = 4 << 20;

  const peer_id id_;
  const std::string name_;  // for error texts: "host:port"
  const ucx_shared& shared_;

  state state_ = state::connecting;
  bool told_up_ = false;  // and not "down" since
  bool listed_ = false;   // in shared_.attention
  clock::time_point deadline_ = clock::time_point::max();
  link::connected connected_;
  error close_reason_;
  std::optional<handshake> handshake_;
  bool accepted_ = false;  // the other side connected
  bool was_up_ = false;
  std::optional<violation> violation_;
  std::optional<error> farewell_;  // the peer's reason to leave
  std::array<std::uint64_t, 2> farewell_frames_{};
  bool answered_ = false;   // the peer confirmed our farewell
  bool answering_ = false;  // we confirmed the peer's

  ucp_ep_h endpoint_ = nullptr;
  void* closing_ = nullptr;  // the request that closes it
  std::optional<ucs_status_t> endpoint_error_;
  bool closing_endpoint_ = false;
  bool abandoned_ = false;  // not to be closed while requests are under way

  bool offered_ = false;                       // the peer's memory is
  std::shared_ptr<borrowed_memory> borrowed_;  // the same, once it is at hand
  bool at_hand_ = false;                       // ours is, for the peer
  std::optional<lent_tensors> lent_;           // once both are
  std::vector<std::uint64_t> returning_;       // loans that are over and not yet returned

  outbox outbox_;
  bundle gathered_;  // empty but in `pump`
  reassembly reassembly_;
  std::list<send_op> sends_;
  std::list<receive_op> receives_;
  std::deque<held_chunk> held_;  // not yet received, or early
};

}  // namespace troupe::messages
