#pragma once

#include <functional>
#include <memory>

#include "engine/collective/nccl/abi.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine::nccl {

/// A point in the work of a stream.
class mark {
 public:
  virtual ~mark() = default;
  /// Whether the stream has got there. Errors: handler_failed, with what the device says.
  [[nodiscard]] virtual result<bool> reached() = 0;
};

/// The device of a communicator, and the stream that its operations run on in order. All but
/// `mark_callers` is called in the communicator's owner thread. Errors: handler_failed.
class device {
 public:
  virtual ~device() = default;
  /// Makes it the current device of the calling thread.
  [[nodiscard]] virtual result<void> enter() = 0;
  [[nodiscard]] virtual stream_handle stream() = 0;
  /// Marks what the communicator's stream has been given so far.
  [[nodiscard]] virtual result<std::unique_ptr<mark>> mark_own() = 0;
  /// Marks what the calling thread's current stream has been given so far. From any thread.
  [[nodiscard]] virtual result<std::unique_ptr<mark>> mark_callers() = 0;
  /// What the communicator's stream is given from now on waits for a mark of `mark_callers`.
  [[nodiscard]] virtual result<void> wait_for(mark& earlier) = 0;
  /// Calls `kernels` with the communicator's stream as the current one, so that what they give the
  /// device comes behind what the stream has been given.
  [[nodiscard]] virtual result<void> run(const std::function<void()>& kernels) = 0;
};

}  // namespace troupe::engine::nccl
