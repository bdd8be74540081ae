#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"
#include "messages/frame.hpp"

namespace troupe::messages {

/// What another process of the same machine must know of one process's shared memory.
struct memory_location {
  std::uint64_t process = 0;     ///< Its number.
  std::int32_t descriptor = -1;  ///< Of that process.
  std::uint64_t bytes = 0;
  std::array<std::byte, 16> mark = {};  ///< Random; stands at the beginning of the memory.
};

/// A hold on a process (a pidfd), which tells when that has ended; invalid where there is none.
[[nodiscard]] descriptor hold_process(pid_t process);
/// Whether the process that is held has ended; true also where there is no hold.
[[nodiscard]] bool has_ended(const descriptor& process);

/// Memory of this process that other processes of this machine can map, only to read: a link lends
/// them the tensors that lie in it instead of copying their bytes. Of tensors elsewhere it knows
/// nothing. Pages come when they are first touched and are kept for later blocks.
///
/// A resource, shared by whoever allocates from it; blocks that are still held outlive it. Nobody
/// has to tidy up after it: the kernel frees it with the last process that has it. Any thread.
class shared_memory {
 public:
  /// As large as the machine's memory; that costs address space only. Errors: io_failed.
  [[nodiscard]] static result<std::shared_ptr<shared_memory>> make();
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;

  /// A block of unspecified content at a page's beginning, free again when its last owner lets go;
  /// nothing (`data` is null) where there is no room.
  [[nodiscard]] payload allocate(std::size_t bytes);

  /// Where in this memory the bytes lie; nullopt: elsewhere.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const payload& bytes) const noexcept;

  [[nodiscard]] const memory_location& location() const noexcept;

  /// Holds what that process (a pidfd) has borrowed, until it has ended: it may be reading.
  void keep_until_end(const std::shared_ptr<descriptor>& process, std::vector<payload> lent);

 private:
  class store;
  struct orphans {
    std::shared_ptr<descriptor> process;
    std::vector<payload> lent;
  };

  explicit shared_memory(std::shared_ptr<store> of) : store_(std::move(of)) {}
  void drop_orphans();

  const std::shared_ptr<store> store_;  // shared with the owners of the blocks
  std::mutex mutex_;
  std::vector<orphans> orphans_;
};

/// The shared memory of another process, mapped to be read. Ends with its last owner, not with the
/// process: what was borrowed from the dead stays readable.
class borrowed_memory {
 public:
  /// Errors: io_failed when that process's memory cannot be opened from here (another machine or
  /// container, another user), or is not what the location says.
  /// `file` is the memory as its process handed it over.
  [[nodiscard]] static result<std::shared_ptr<borrowed_memory>> open(const memory_location& where,
                                                                     const descriptor& file);
  borrowed_memory(const borrowed_memory&) = delete;
  borrowed_memory& operator=(const borrowed_memory&) = delete;
  ~borrowed_memory();

  /// Only to be read. The caller has checked that the bytes lie within `bytes()`.
  [[nodiscard]] const std::byte* at(std::uint64_t offset) const noexcept { return data_ + offset; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// The process whose memory this is: a pidfd.
  [[nodiscard]] const std::shared_ptr<descriptor>& process() const noexcept { return process_; }

 private:
  borrowed_memory(const std::byte* data, std::uint64_t bytes, std::shared_ptr<descriptor> process)
      : data_(data), bytes_(bytes), process_(std::move(process)) {}

  const std::byte* const data_;
  const std::uint64_t bytes_;
  const std::shared_ptr<descriptor> process_;
};

}  // namespace troupe::messages
