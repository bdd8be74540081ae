#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "messages/link/buffer_pool.hpp"
#include "messages/link/event_queue.hpp"
#include "messages/link/ucx_handles.hpp"
#include "messages/link/ucx_peer.hpp"

namespace troupe::messages {

/// A UCX worker and its peers. Everything happens on one thread, the one that made it.
class ucx_engine {
 public:
  using clock = std::chrono::steady_clock;

  /// `counters` outlives the engine; `memory` (null: none) is what it lends, and `desk` is told of
  /// what was borrowed and is over. Errors: transport_missing, io_failed.
  [[nodiscard]] static result<std::unique_ptr<ucx_engine>> make(
      const ucx_options& options, link_events events, link_counters& counters,
      std::shared_ptr<shared_memory> memory, std::shared_ptr<return_desk> desk);
  ucx_engine(const ucx_engine&) = delete;
  ucx_engine& operator=(const ucx_engine&) = delete;
  /// Completes what is in flight with errc::cancelled and closes every connection.
  ~ucx_engine();

  [[nodiscard]] result<std::string> listen(const ucx::address& where, const std::string& text);
  void connect(const ucx::address& where, std::string name, std::chrono::milliseconds timeout,
               link::connected done);
  void send(peer_id to, std::shared_ptr<outgoing> frame);
  void close(peer_id which, error reason);
  void give_back(peer_id to, std::uint64_t loan);
  /// Reports a send or connect that never started.
  void refuse(link::completion done, error why);
  void refuse(link::connected done, error why);

  /// Does what there is to do and tells the owner. Returns whether there was anything.
  bool poll(clock::time_point now);

  /// Readable when `poll` has something to do, once `arm` has returned true.
  [[nodiscard]] int event_fd() const { return event_fd_; }
  /// False when there is something to do at once.
  [[nodiscard]] bool arm();
  /// When `poll` has something to do at the latest.
  [[nodiscard]] clock::time_point deadline() const { return deadline_; }

 private:
  ucx_engine(const ucx_options& options, link_events events, link_counters& counters,
             std::shared_ptr<shared_memory> memory, std::shared_ptr<return_desk> desk);

  result<void> start();
  result<void> set_handlers();
  result<void> set_handler(unsigned id, ucp_am_recv_callback_t handler);
  ucx_peer& add_peer(std::string name);
  void accept_waiting(clock::time_point now);
  void settle(ucx_peer& peer, clock::time_point now);
  bool settle_all(clock::time_point now);
  void settle_expired(clock::time_point now);
  ucx_peer* find(ucp_ep_h endpoint);
  void remember(ucx_peer& peer);
  void end_requests();
  static void on_connection(ucp_conn_request_h request, void* self);
  template <unsigned Id>
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  template <class Handler>
  static ucs_status_t dispatch(void* self, const ucp_am_recv_param_t* param, Handler handle);

  const ucx_options options_;
  link_counters& counters_;
  event_queue events_;
  buffer_pool pool_;
  std::vector<ucx_peer*> attention_;
  std::vector<ucx_peer*> due_;                   // empty but in `settle_all`
  std::vector<ucp_conn_request_h> connections_;  // came in, not yet taken
  clock::time_point deadline_ = clock::time_point::max();
  std::uint64_t next_peer_ = 1;
  int event_fd_ = -1;
  ucx_shared shared_;

  // UCX may call back into peers until the worker is destroyed: see the destructor.
  ucx::context context_;
  ucx::worker worker_;
  ucx::listener listener_;
  std::unordered_map<std::uint64_t, std::unique_ptr<ucx_peer>> peers_;
  std::unordered_map<ucp_ep_h, ucx_peer*> by_endpoint_;
};

}  // namespace troupe::messages
