#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "messages/link/ucx/handles.hpp"
#include "messages/link/wire/connection.hpp"

namespace troupe::messages::ucx {

class ucx_carrier;

/// A UCX worker and the connections whose frames it moves. It knows of a connection what its
/// messages name, the number of its session. One thread, the one that made it.
class mover {
 public:
  /// `counters` outlives it. Errors: transport_missing, io_failed.
  [[nodiscard]] static result<std::unique_ptr<mover>> make(const link_options& options,
                                                           link_counters& counters);
  mover(const mover&) = delete;
  mover& operator=(const mover&) = delete;
  /// After `drain`, and before the connections' objects, into which UCX may still call.
  ~mover();

  /// Lets UCX do what there is to do. Returns whether there was anything.
  bool progress() { return ucp_worker_progress(worker_.get()) > 0; }
  /// Before the end: waits, a second at most, until UCX copies nothing any more.
  void drain();

  /// Readable when `progress` has something to do, once `arm` has returned true.
  [[nodiscard]] int event_fd() const { return event_fd_; }
  [[nodiscard]] bool arm() { return ucp_worker_arm(worker_.get()) == UCS_OK; }

  [[nodiscard]] ucp_worker_h worker() const { return worker_.get(); }
  /// Where other workers reach this one. Errors: io_failed.
  [[nodiscard]] std::vector<std::byte> address() const { return address_; }

  void add(std::uint64_t session, ucx_carrier& carrier) { carriers_[session] = &carrier; }
  void remove(std::uint64_t session) { carriers_.erase(session); }
  /// Receives that are under way: UCX must not be destroyed while it copies from a peer's memory.
  void receive_started() { ++receives_; }
  void receive_ended() { --receives_; }

 private:
  explicit mover(link_counters& counters) : counters_(counters) {}

  result<void> start(const link_options& options);
  result<void> read_address();
  result<void> set_handlers();
  template <unsigned Id>
  result<void> set_handler();
  template <unsigned Id>
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  [[nodiscard]] ucx_carrier* find(std::span<const std::byte> header);

  link_counters& counters_;
  ucx::context context_;
  ucx::worker worker_;
  int event_fd_ = -1;
  std::vector<std::byte> address_;
  std::unordered_map<std::uint64_t, ucx_carrier*> carriers_;  // by session
  std::uint64_t receives_ = 0;
};

}  // namespace troupe::messages::ucx
