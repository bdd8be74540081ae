#pragma once

#include <sys/socket.h>

#include <string>

#include "messages/base/error.hpp"

namespace troupe::messages::door {

/// Where a process is met: a TCP address, or a socket in the file system of one machine.
struct address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  /// "host:port", "[v6]:port" or "unix:PATH".
  [[nodiscard]] std::string text() const;
  /// Who stands there, without the port: for counting strangers by where they come from.
  [[nodiscard]] std::string host() const;
  [[nodiscard]] bool is_unix() const noexcept { return storage.ss_family == AF_UNIX; }
  /// No other machine reaches it.
  [[nodiscard]] bool is_local() const noexcept;
};

/// "host:port", "[v6]:port", ":port" (loopback), "unix:PATH". Resolves names, so it may block.
/// Errors: address_unavailable.
[[nodiscard]] result<address> resolve(const std::string& text, bool to_listen);

/// Errors: address_unavailable, when the path is too long for a socket.
[[nodiscard]] result<address> unix_address(const std::string& path);

}  // namespace troupe::messages::door
