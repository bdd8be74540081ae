#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::messages::ucx {

/// The one place where UCX's status codes become errors. `what` was being tried. `as` is the code
/// where the caller knows what any failure means: statuses differ between UCX's modes.
[[nodiscard]] error to_error(ucs_status_t status, const std::string& what,
                             std::optional<errc> as = std::nullopt);

template <auto Destroy>
struct destroyer {
  template <class T>
  void operator()(T* handle) const noexcept {
    Destroy(handle);
  }
};

/// What one of UCX's own functions prints to the stream that it is given; empty without memory.
template <class Print>
[[nodiscard]] std::string printed(Print print) {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const stream = open_memstream(&text, &length);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string out(text, length);
  std::free(text);
  return out;
}

/// A UCX object, destroyed with its owner; the parent object must outlive it.
using context = std::unique_ptr<ucp_context, destroyer<ucp_cleanup>>;
using worker = std::unique_ptr<ucp_worker, destroyer<ucp_worker_destroy>>;

/// What is used of UCX: by default as links do, Active Messages, and waiting for them through a
/// file descriptor.
struct purpose {
  std::uint64_t features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  bool in_several_threads = false;  ///< Of its workers, each has one of its own.
};

/// A worker for one thread.
[[nodiscard]] result<worker> make_worker(ucp_context_h parent);

/// Has the worker call `take` with `arg` for each Active Message of that id.
[[nodiscard]] result<void> set_handler(ucp_worker_h of, unsigned id, ucp_am_recv_callback_t take,
                                       void* arg);

/// What others reach a worker by. Errors: io_failed.
[[nodiscard]] result<std::vector<std::byte>> address_of(ucp_worker_h of);

/// Closes an endpoint over a network without its peer, before its worker goes: UCX ends the process
/// when a worker goes whose endpoint has something to send. Turns the worker until `is_over`, for
/// about ten milliseconds at most; what handlers and callbacks are told meanwhile must not be
/// answered. Over shared memory, where UCX does not, no endpoint can be closed without its peer.
void close_endpoint(ucp_worker_h of, ucp_ep_h endpoint, const std::function<bool()>& is_over);

/// UCX, as one link uses it. A resource; outlives the workers made of it.
class library {
 public:
  /// Errors: transport_missing, when UCX has no such wire on this machine; io_failed.
  [[nodiscard]] static result<std::unique_ptr<library>> open(const link_options& options,
                                                             const purpose& use = {});

  library(const library&) = delete;
  library& operator=(const library&) = delete;
  ~library();

  [[nodiscard]] ucp_context_h context() const { return context_.get(); }

 private:
  explicit library(ucx::context of) : context_(std::move(of)) {}

  const ucx::context context_;
};

}  // namespace troupe::messages::ucx
