#pragma once

#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "messages/error.hpp"
#include "messages/link/ucx_link.hpp"

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

/// A UCX object, destroyed with its owner; the parent object must outlive it.
using context = std::unique_ptr<ucp_context, destroyer<ucp_cleanup>>;
using worker = std::unique_ptr<ucp_worker, destroyer<ucp_worker_destroy>>;
using listener = std::unique_ptr<ucp_listener, destroyer<ucp_listener_destroy>>;

/// Errors: transport_missing, when UCX has no such wire on this machine.
[[nodiscard]] result<context> make_context(const ucx_options& options);

/// A worker for one thread, which can be waited for through a file descriptor.
[[nodiscard]] result<worker> make_worker(ucp_context_h parent);

/// A socket address. `text` is "host:port" as the user would write it.
struct address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool is_loopback() const noexcept;
};

/// "host:port", "[v6]:port", ":port" (loopback). Resolves names, so it may block.
/// Errors: address_unavailable.
[[nodiscard]] result<address> resolve(const std::string& text, bool to_listen);

/// Says in the system's words why an address cannot be listened at. UCX would log and not say.
[[nodiscard]] result<void> check_bindable(const address& where, const std::string& text);

[[nodiscard]] result<listener> make_listener(ucp_worker_h parent, const address& where,
                                             ucp_listener_conn_handler_t on_connection);
[[nodiscard]] result<address> bound_address(ucp_listener_h of);
/// Where a connection came from; empty when UCX does not say.
[[nodiscard]] std::string origin(ucp_conn_request_h request);

}  // namespace troupe::messages::ucx
