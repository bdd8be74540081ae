#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/base/named_tensor.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A tensor as it is when the snapshot is made, for one reader in another thread while its owner
/// goes on. It is copied only if the owner is about to change the tensor before it has been read:
/// copy on write, where the owner says that it will write. May be used by both threads at once.
class snapshot {
 public:
  enum class elements : std::uint8_t { may_change, stay };

  /// A dense tensor on the CPU, whose memory is shared.
  snapshot(const named_tensor& of, elements how);

  [[nodiscard]] const tensor_form& form() const { return form_; }

  /// The owner's, before it changes the tensor: from here on the elements are read from what `copy`
  /// makes of it, which must stay as it is. Not called where all has been read. The owner waits
  /// while a run of 1 MiB is copied, and never for whoever takes it. If `copy` throws, reading
  /// fails for that reason.
  void make_own(const std::function<at::Tensor(const at::Tensor&)>& copy);

  /// The reader's: gives all elements in row-major order, once. Errors: those of `take`;
  /// handler_failed where a copy could not be made; stale where they have been read.
  [[nodiscard]] result<void> read(const tensor_stream::taker& take);

  /// The same in one tensor, which nobody changes.
  [[nodiscard]] result<at::Tensor> read_whole();

 private:
  [[nodiscard]] tl::unexpected<error> has_been_read() const;
  /// The elements from `first` on: all of them where they stay, else a copy of some.
  result<at::Tensor> next_run(std::int64_t first);

  const tensor_form form_;
  std::mutex lock_;
  result<at::Tensor> tensor_;
  bool is_own_;
};

using shown_tensors = std::vector<std::shared_ptr<snapshot>>;

/// Those that somebody may still read, for their tensors' owner. Used by one thread.
class unread_snapshots {
 public:
  void add(const shown_tensors& shown);
  /// Before their tensors change. Forgets them.
  void make_own(const std::function<at::Tensor(const at::Tensor&)>& copy);

 private:
  std::vector<std::weak_ptr<snapshot>> all_;
};

[[nodiscard]] shown_tensors snapshots_of(const std::vector<named_tensor>& tensors,
                                         snapshot::elements how);

/// Gives its tensors once.
[[nodiscard]] tensor_stream stream_of(shown_tensors tensors);

}  // namespace troupe::engine
