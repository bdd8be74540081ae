#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "cluster/doctor/edges/channel.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/ucx/raw_peer.hpp"

// UCX alone, between two processes that have met over our link and tell each other their addresses
// there, in hexadecimal digits.

namespace troupe::cluster::doctor {

/// Answers one client until it leaves or this is destroyed.
class raw_ucx_listener {
 public:
  /// Errors: transport_missing, io_failed, address_unavailable.
  [[nodiscard]] static result<std::unique_ptr<raw_ucx_listener>> open(
      const messages::link_options& options, const std::string& client);
  raw_ucx_listener(const raw_ucx_listener&) = delete;
  raw_ucx_listener& operator=(const raw_ucx_listener&) = delete;
  ~raw_ucx_listener();

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  explicit raw_ucx_listener(std::unique_ptr<messages::ucx::raw_peer> peer);

  const std::unique_ptr<messages::ucx::raw_peer> peer_;
  const std::string address_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

/// The client's side: made first, for the listener needs its address.
class raw_ucx final : public channel {
 public:
  /// Errors: transport_missing, io_failed.
  [[nodiscard]] static result<std::unique_ptr<raw_ucx>> make(messages::link_options options);

  [[nodiscard]] std::string address() const;
  /// Errors: address_unavailable.
  [[nodiscard]] result<void> reach(const std::string& listener);
  /// "posix/memory": once something has been sent.
  [[nodiscard]] std::string transports() const { return peer_->transports(); }

  result<void> round_trips(int count) override { return peer_->round_trips(count); }
  result<void> push(std::size_t bytes, int count) override { return peer_->push(bytes, count); }

 private:
  explicit raw_ucx(std::unique_ptr<messages::ucx::raw_peer> peer) : peer_(std::move(peer)) {}

  const std::unique_ptr<messages::ucx::raw_peer> peer_;
};

}  // namespace troupe::cluster::doctor
