#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/link/link_options.hpp"

namespace troupe::messages::ucx {

/// UCX's Active Messages to one other process, with nothing of ours on top: what a link over UCX
/// can at best reach. The two tell each other their addresses in another way. It has no protection
/// of its own: only for peers that have proved themselves. Used by one thread, which polls.
class raw_peer {
 public:
  /// Over the transports of a link with these options; inside a machine UCX may also read the
  /// other process's memory, where it can. Errors: transport_missing, io_failed.
  [[nodiscard]] static result<std::unique_ptr<raw_peer>> make(link_options options);
  raw_peer(const raw_peer&) = delete;
  raw_peer& operator=(const raw_peer&) = delete;
  ~raw_peer();

  [[nodiscard]] const std::vector<std::byte>& address() const noexcept;
  /// Errors: address_unavailable.
  [[nodiscard]] result<void> reach(std::span<const std::byte> address);
  /// What UCX sends to the other by: "posix/memory, cma/memory".
  [[nodiscard]] std::string transports() const;

  /// Answers the other until it leaves or `stop` is set.
  void serve(const std::atomic<bool>& stop);

  /// See doctor's channel: round trips of 8 bytes, and blocks until the last has arrived. Errors:
  /// timed_out after five seconds without an answer, peer_lost.
  [[nodiscard]] result<void> round_trips(int count);
  [[nodiscard]] result<void> push(std::size_t bytes, int count);

 private:
  struct state;
  explicit raw_peer(std::unique_ptr<state> of);

  const std::unique_ptr<state> state_;
};

}  // namespace troupe::messages::ucx
