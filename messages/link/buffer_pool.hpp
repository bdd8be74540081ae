#pragma once

#include <cstddef>
#include <memory>

#include "messages/frame.hpp"

namespace troupe::messages {

/// Memory for tensors that arrive. Fresh pages cost about ten times a warm copy, so a buffer goes
/// back to the pool when its last tensor dies, whichever thread that is, and is handed out again.
/// Buffers are aligned to 64 bytes and come in size classes at most a quarter larger than asked.
/// A resource: its destructor frees what is unused; buffers still held outlive it and are freed
/// when they are released. Every member may be called from any thread.
class buffer_pool {
 public:
  /// Keeps at most `retained_bytes` of unused memory; what is released beyond is freed.
  explicit buffer_pool(std::size_t retained_bytes);
  buffer_pool(const buffer_pool&) = delete;
  buffer_pool& operator=(const buffer_pool&) = delete;
  ~buffer_pool();

  /// A buffer of `bytes` bytes of unspecified content; nothing for 0. Throws std::bad_alloc.
  [[nodiscard]] payload acquire(std::size_t bytes);

  /// Unused memory that is kept now.
  [[nodiscard]] std::size_t retained_bytes() const;

  /// What `acquire(bytes)` really takes: `bytes` rounded up to its size class.
  [[nodiscard]] static std::size_t class_bytes(std::size_t bytes) noexcept;

 private:
  class store;
  std::shared_ptr<store> store_;  // shared with the owners of the buffers
};

}  // namespace troupe::messages
