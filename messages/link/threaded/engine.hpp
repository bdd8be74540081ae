#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/link/buffer_pool.hpp"
#include "messages/link/door/alarm.hpp"
#include "messages/link/door/door_carrier.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/seal/shown_share.hpp"
#include "messages/link/threaded/lobby.hpp"
#include "messages/link/wire/connection.hpp"
#include "messages/link/wire/event_queue.hpp"

namespace troupe::messages {

namespace ucx {
class ucx_carrier;
class library;
}  // namespace ucx

/// What the link's thread runs: the sockets to which peers connect, UCX if frames pass through it,
/// and the connections. Everything happens on the thread that made it.
class engine {
 public:
  using clock = std::chrono::steady_clock;

  /// Options for each door: `inside`, whose transport is shm, is for the second one, if there is to
  /// be one. `counters` outlives the engine; `memory` (null: none) is what it lends over shm,
  /// and borrowed tensors are returned by way of `desk`. `wake_fd`: an eventfd that ends a
  /// `wait`; it outlives the engine too. Errors: transport_missing, io_failed.
  [[nodiscard]] static result<std::unique_ptr<engine>> make(
      const link_options& options, const std::optional<link_options>& inside, link_events events,
      link_counters& counters, std::shared_ptr<shared_memory> memory,
      std::shared_ptr<return_desk> desk, int wake_fd);
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  /// Completes what is in flight with errc::cancelled and closes every connection.
  ~engine();

  /// nullopt: at a fresh private name, as the second door always is. Called again, it moves the
  /// first door. Gives a meeting_place.
  [[nodiscard]] result<std::string> listen(const std::optional<door::address>& where,
                                           const std::string& text);
  void connect(const door::address& where, std::string name, std::chrono::milliseconds timeout,
               link::connected done);
  void send(peer_id to, std::shared_ptr<outgoing> frame);
  void close(peer_id which, error reason);
  void give_back(peer_id to, std::uint64_t loan);
  /// Reports a send or connect that never started.
  void refuse(link::completion done, error why);
  void refuse(link::connected done, error why);

  /// Whether a peer came, or was met, at the second of two doors.
  [[nodiscard]] static bool is_inside(peer_id which) noexcept { return which.value % 2 == 1; }

  /// Does all work that is due and calls the owner with events. Returns whether there was any.
  bool poll(clock::time_point now);

  /// Once `arm` has returned true, `wait` ends as soon as `poll` has something to do; false: there
  /// is something to do at once.
  [[nodiscard]] bool arm();
  /// Sleeps until a socket, UCX or the eventfd has news, at most for `longest`, and takes them in.
  /// Returns whether there were any for `poll`.
  bool wait(clock::duration longest);
  /// When `poll` has something to do at the latest.
  [[nodiscard]] clock::time_point deadline() const {
    return std::min({deadline_, sweep_at_, shown_.deadline(), alarm_.deadline()});
  }

 private:
  struct peer {
    std::unique_ptr<door::door_carrier> by;
    ucx::ucx_carrier* over_ucx = nullptr;  // the same, where frames pass through UCX
    std::unique_ptr<connection> core;
    bool is_stranger = false;     // is one of `strangers_`
    bool is_counted_out = false;  // is none of `living_`
  };

  /// A door, and what moves the frames of those who are met there.
  struct entrance {
    entrance(engine& of, const link_options& how, std::shared_ptr<shared_memory> memory,
             const std::shared_ptr<return_desk>& desk);

    const link_options options;
    connection_shared shared;
    std::unique_ptr<ucx::library> ucx;  // null: the door carries everything
    std::optional<door::listener> listener;
  };

  // What epoll says of the doors; peers are numbered from there, the inside ones with odd numbers.
  static constexpr std::uint64_t outside_tag = 0, inside_tag = 1, wake_tag = 2, first_peer = 4;

  engine(const link_options& options, const std::optional<link_options>& inside, link_events events,
         link_counters& counters, std::shared_ptr<shared_memory> memory,
         std::shared_ptr<return_desk> desk);

  result<void> start(int wake_fd);
  static result<void> open_ucx(entrance& at);
  result<void> open(entrance& at, result<door::listener> door, std::uint64_t tag);
  template <class From>
  peer& add_peer(entrance& at, std::string name, connection::role mine, From from);
  result<void> watch(int what, std::uint64_t tag);
  bool look_at_doors(clock::time_point now, int milliseconds = 0);
  bool take_news(std::uint64_t tag, std::uint32_t events, clock::time_point now);
  void accept_waiting(entrance& at, clock::time_point now);
  void take_in(entrance& at, door::visitor who, clock::time_point now);
  void push_out_stranger();
  void mind_strangers(clock::time_point now);
  bool let_act(connection& which, clock::time_point now);
  bool let_all_act(clock::time_point now);
  void wake_expired(clock::time_point now);
  void tell_carrier(peer& which, std::uint32_t events);
  [[nodiscard]] key_share share_to_show(clock::time_point now);
  [[nodiscard]] key_share make_share() const;
  [[nodiscard]] static bool is_released(const peer& which);
  bool progress_ucx();
  void sweep(clock::time_point now);

  const link_options options_;
  link_counters& counters_;
  event_queue events_;
  buffer_pool pool_;
  std::vector<connection*> attention_;
  std::vector<connection*> due_;  // empty but in `let_all_act`
  clock::time_point deadline_ = clock::time_point::max();
  clock::time_point sweep_at_ = clock::time_point::max();
  clock::duration sweep_pause_ = {};
  clock::time_point look_at_ = {};  // at the doors, though nothing was told of them
  bool by_ucx_ = false;             // frames of some peer pass through UCX
  std::uint64_t next_peer_ = first_peer;
  std::uint64_t strangers_ = 0;  // came in and are not up
  std::uint64_t living_ = 0;     // peers that are not gone
  lobby lobby_;
  door::alarm alarm_;
  bool is_screened_ = false;  // by the listener
  bool has_warned_ = false;   // of strangers
  shown_share shown_;

  descriptor epoll_;
  int wake_fd_ = -1;
  entrance outside_;                  // the only one, where there is one
  std::unique_ptr<entrance> inside_;  // null: there is no second
  std::unordered_map<std::uint64_t, peer> peers_;
};

}  // namespace troupe::messages
