#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "messages/link/ucx/handles.hpp"

namespace troupe::bench {

/// Memory aligned as a tensor's is: copies between two that are not aligned alike are slower.
template <class T>
struct tensor_alignment {
  using value_type = T;
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t(64)); }
  bool operator==(const tensor_alignment&) const = default;
};
using tensor_bytes = std::vector<std::byte, tensor_alignment<std::byte>>;

/// UCX's Active Messages with nothing on top: no frames, no order, no peers but one, no thread but
/// the caller's, which polls all the time. What a link over UCX can at best reach. Ends the process
/// when UCX fails.
class raw_ucx {
 public:
  explicit raw_ucx(messages::link_transport transport);
  raw_ucx(const raw_ucx&) = delete;
  raw_ucx& operator=(const raw_ucx&) = delete;
  ~raw_ucx();

  /// Answers one client until it leaves. `bound` is told where it listens.
  void serve(const std::function<void(const std::string&)>& bound);

  void connect(const std::string& address);

  /// Microseconds of a round trip of 8 bytes.
  double round_trip_us(int count);

  /// MB/s of `count` tensors, until the server has received the last. At most four are in flight;
  /// the server receives into four buffers again and again, as out of a warm pool.
  double megabytes_per_second(std::size_t bytes, int count);

 private:
  enum message : unsigned { ping = 1, tensor = 2, leave = 3 };
  static constexpr int window = 4;
  struct receive;

  template <ucs_status_t (raw_ucx::*Take)(void*, std::size_t, bool)>
  static ucs_status_t handler(void* self, const void*, std::size_t, void* data, std::size_t bytes,
                              const ucp_am_recv_param_t* param);
  template <ucs_status_t (raw_ucx::*Take)(void*, std::size_t, bool)>
  void handle(message id);
  ucs_status_t take_ping(void* data, std::size_t bytes, bool rendezvous);
  ucs_status_t take_tensor(void* data, std::size_t bytes, bool rendezvous);
  ucs_status_t take_leave(void* data, std::size_t bytes, bool rendezvous);

  void open(ucp_ep_params_t params);
  void send(message id, const void* data, std::size_t bytes);
  void answer_if_due();
  void progress() { ucp_worker_progress(worker_.get()); }

  messages::link_transport transport_;
  messages::ucx::context context_;
  messages::ucx::worker worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_conn_request_h request_ = nullptr;
  std::vector<tensor_bytes> buffers_;
  std::uint64_t number_ = 0;    // what a ping carries: tensors sent before it
  std::uint64_t answered_ = 0;  // pings
  std::uint64_t tensors_ = 0;   // received whole
  std::uint64_t started_ = 0;   // receives
  bool asked_ = false;          // a ping waits until its tensors are here
  int in_flight_ = 0;
  bool is_server_ = false;
  bool left_ = false;
};

}  // namespace troupe::bench
