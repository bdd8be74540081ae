#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::messages::ucx {

/// What UCX reads from and writes to.
enum class memory_kind : std::uint8_t { host, cuda };

class library;

/// UCX, for the channels of a process that move such memory; it may take a second where that is a
/// GPU's, which is the calling thread's current device then. Errors: transport_missing where the
/// UCX that is loaded cannot move it between processes of this machine, saying what to do.
[[nodiscard]] result<std::shared_ptr<const library>> open_for(memory_kind memory);

/// One direction between two processes of one machine, by which UCX alone moves memory, that of a
/// GPU from GPU to GPU: the receiver's UCX maps the sender's memory and copies it (CUDA IPC). What
/// is sent arrives in the order of the calls, in the memory that the receiver has named for it. The
/// two tell each other their addresses in another way. It has no protection of its own: only for
/// peers that have proved themselves. Used by one thread at a time, of which the GPU is the current
/// device where the memory is a GPU's.
class memory_channel {
 public:
  /// Called from `progress`, `send` or `receive`. Errors: io_failed, peer_lost, cancelled, and
  /// bad_frame where the receiver had named memory of another size.
  using done = std::function<void(const result<void>&)>;

  /// Either end of a new channel, by what was opened for such memory. Errors: io_failed.
  [[nodiscard]] static result<std::unique_ptr<memory_channel>> make(
      std::shared_ptr<const library> by, memory_kind memory);
  memory_channel() = default;
  memory_channel(const memory_channel&) = delete;
  memory_channel& operator=(const memory_channel&) = delete;
  /// The ends of what is under way are not called. Nothing is written to memory that was named any
  /// more only if `receiving` was 0.
  virtual ~memory_channel() = default;

  [[nodiscard]] virtual const std::vector<std::byte>& address() const noexcept = 0;

  /// The receiver reaches the sender, and tells it where it is itself. Errors:
  /// address_unavailable.
  [[nodiscard]] virtual result<void> reach(std::span<const std::byte> sender) = 0;

  /// Whether this end knows where the other one is, so that it may send. Errors:
  /// address_unavailable, io_failed.
  [[nodiscard]] virtual result<bool> is_reached() const = 0;

  /// The memory is read, or written, until `ended` is called. `send` needs `is_reached`.
  virtual void send(const void* from, std::size_t bytes, done ended) = 0;
  virtual void receive(void* to, std::size_t bytes, done ended) = 0;

  /// Lets UCX go on.
  virtual void progress() = 0;
  /// Receives that are under way and to which nothing has been sent yet end as cancelled.
  virtual void cancel_receives() = 0;
  [[nodiscard]] virtual std::size_t receiving() const noexcept = 0;
};

}  // namespace troupe::messages::ucx
