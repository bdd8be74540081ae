#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "cluster/doctor/edges/channel.hpp"
#include "messages/descriptor.hpp"

// A plain TCP socket: what the network reaches with nothing of ours on top. Who connects must first
// write a token that has come over the sealed link; to anybody else nothing is answered.

namespace troupe::cluster::doctor {

/// Answers one client at a time until it is destroyed.
class raw_socket_listener {
 public:
  /// Listens at any free port of an address. Errors: address_unavailable.
  [[nodiscard]] static result<std::unique_ptr<raw_socket_listener>> open(const std::string& host);
  raw_socket_listener(const raw_socket_listener&) = delete;
  raw_socket_listener& operator=(const raw_socket_listener&) = delete;
  ~raw_socket_listener();

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }

 private:
  raw_socket_listener(descriptor socket, std::string address);

  const descriptor socket_;
  const std::string address_;
  std::uint64_t token_ = 0;
  std::thread thread_;
};

/// Connects to one. Errors: address_unavailable, timed_out.
[[nodiscard]] result<std::unique_ptr<channel>> connect_raw_socket(const std::string& address,
                                                                  std::uint64_t token);

}  // namespace troupe::cluster::doctor
