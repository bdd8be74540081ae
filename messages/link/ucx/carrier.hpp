#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "messages/link/door/door_carrier.hpp"
#include "messages/link/ucx/handles.hpp"

namespace troupe::messages::ucx {

/// Carries a connection's frames as Active Messages of UCX, and the rest over the door, whose end
/// is the sign of a peer's death. UCX is told of a peer only when that has proved itself, and each
/// peer has a worker of its own: what a process that was killed or stopped leaves in shared memory
/// stays between it and us, and goes with the worker. One thread.
///
/// Inside a machine UCX moves what is small, once there is enough of it: a worker takes
/// milliseconds and about a mebibyte, so two that say little pass it through the door. The first of
/// the two with more to say makes its worker and tells its address, and the other answers with its
/// own. A chunk is read by its receiver where it lies in the sender's memory (process_vm_readv),
/// which then says so; where the system does not allow that, it passes the door. UCX's own way of
/// reading (its cma transport) ends the reader's process when the other one has died.
class ucx_carrier final : public door::door_carrier {
 public:
  template <class From>
  ucx_carrier(waiting_room where, const link_options& options, From from, ucp_context_h of)
      : door_carrier(where, options.bounds, std::move(from)),
        where_(where),
        context_(of),
        is_shm_(options.transport == link_transport::shm) {}
  ~ucx_carrier() override;

  /// Added to the tag of epoll for UCX's own news.
  static constexpr std::uint64_t worker_tag = std::uint64_t{1} << 63;

  /// Lets UCX do what there is to do. Returns whether there was anything.
  bool progress_ucx();
  /// Takes in what the peer has sent by way of UCX so far.
  void catch_up();
  /// Whether frames go by way of UCX.
  [[nodiscard]] bool uses_ucx() const { return endpoint_ != nullptr && !failed_; }
  /// False when there is something to do at once. A worker over shared memory that is armed, and
  /// has neither sent nor told anything since, is left alone: to arm one takes two system calls.
  [[nodiscard]] bool arm();
  /// The worker's descriptor was ready, so it has to be armed again. Returns whether it was armed:
  /// otherwise the descriptor may be ready because of what has long been taken in.
  bool take_news() { return std::exchange(is_armed_, false); }

  void send(sending& what) override;
  void receive(receiving& what) override;
  void drop(void* offered) override;
  [[nodiscard]] std::vector<std::byte> address() override;
  [[nodiscard]] result<void> reach(std::span<const std::byte> address) override;
  [[nodiscard]] bool expects_address() const override { return is_shm_ && !is_told_; }
  [[nodiscard]] bool keeps_order() const override { return false; }
  [[nodiscard]] bool reads_peer() const override { return reads_; }
  void peer_reads() override { is_read_ = true; }
  void hang_up() override;

  /// Nobody reads memory of ours any more that was lent to this peer's reading.
  [[nodiscard]] bool is_released();

 private:
  /// Where a chunk lies in the sender's memory.
  struct chunk_place {
    std::uint64_t at = 0;
    std::uint64_t ticket = 0;
  };

  using clock = std::chrono::steady_clock;

  void note_traffic(wire::message_id id);
  bool offer_worker();
  result<void> open_worker();
  result<void> open_endpoint(std::span<const std::byte> address);
  void close_endpoint();
  result<void> set_handlers();
  template <unsigned Id>
  result<void> set_handler();
  template <unsigned Id>
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  ucs_status_t take_chunk(std::span<const std::byte> header, void* data, std::size_t bytes,
                          bool rendezvous);
  void take_receipt(std::span<const std::byte> header);
  static void on_sent(void* request, ucs_status_t status, void* what);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* what);
  static void on_failed(void* self, ucp_ep_h endpoint, ucs_status_t status);
  void post(sending& what, unsigned flags);
  void post_copy(unsigned id, std::span<const std::byte> header, std::span<const std::byte> data);
  void post_place(sending& what);
  void finish_send(sending& what, ucs_status_t status);
  void say_receipt(std::uint64_t ticket);
  void read_memory(receiving& what, const chunk_place& from);
  void fail(std::string_view why);
  void note_failure(ucs_status_t status);
  void probe(std::span<const std::byte> address);

  const waiting_room where_;
  const ucp_context_h context_;
  const bool is_shm_;
  ucx::worker worker_;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  bool is_armed_ = false;   // the worker
  bool is_known_ = false;   // the peer has said an address
  bool is_told_ = false;    // it has said UCX's
  bool has_tried_ = false;  // to make a worker
  unsigned recent_ = 0;     // messages through the door since then, for about a second
  clock::time_point recent_since_ = {};
  bool failed_ = false;
  bool is_ending_ = false;  // callbacks only free what they are told of, and count it
  std::size_t told_ = 0;

  sending* posting_ = nullptr;                // is being given to UCX
  std::unordered_set<sending*> posted_;       // UCX has not sent it yet
  std::map<std::uint64_t, sending*> placed_;  // chunks that the peer is to read, by ticket
  std::unordered_set<receiving*> receiving_;  // with UCX
  std::map<void*, std::unique_ptr<chunk_place>> places_;  // where chunks lie that we are to read
  std::uint64_t next_ticket_ = 1;
  bool reads_ = false;    // we can read the peer's memory
  bool is_read_ = false;  // the peer can read ours
  descriptor process_held_;
  std::vector<std::shared_ptr<outgoing>> kept_;  // that a peer which we left may be reading
};

}  // namespace troupe::messages::ucx
