#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// Whether what is written has reached the disk when a function returns, or is synced by its
/// caller.
enum class durability : std::uint8_t { synced, later };

/// Syncs the names in a folder, so that they outlive a loss of power. Some file systems (network,
/// FUSE) cannot: nothing more can be done there, which is no failure. False with errno where it
/// fails, or cannot be opened.
[[nodiscard]] bool sync_folder(const std::filesystem::path& folder);

/// Removes from a folder what writers have left that were killed. A file goes only where all of
/// this is so: a process of the kernel that runs here made it, since locks may mean nothing to
/// other hosts that share the disk, and process numbers nothing to other containers; it is this
/// user's; and nobody holds its lock. What cannot be removed stays.
void remove_abandoned(const std::filesystem::path& folder);

/// A file that appears under its name whole or not at all: it is written under a temporary name in
/// the same folder, synced, and renamed by `commit`. Destroyed without a commit it leaves no trace;
/// what a killed process leaves is removed when this user's next file is made in that folder, if
/// the kernel that runs here has run it and nobody holds the file's lock (docs/checkpoints.md).
/// Only a regular file is replaced; where the name is a symbolic link, the link stays and what it
/// leads to is replaced. The new file has the mode of the old one, and its owner as far as the
/// system lets us give files away. Used by one thread. Errors: io_failed naming the file and the
/// system's reason.
class atomic_file {
 public:
  [[nodiscard]] static result<std::unique_ptr<atomic_file>> create(std::filesystem::path file);
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file();

  /// Announces that so many bytes will be written: where the file system can, it allocates them
  /// now, which costs less than to do it as they come. It is no failure if it cannot: the write for
  /// which there is no room says so.
  void reserve(std::uint64_t bytes);
  /// Behind what was written last.
  [[nodiscard]] result<void> write(std::span<const std::byte> bytes);
  /// From the byte `offset` of the file on; what is between written places and written nowhere is
  /// zero.
  [[nodiscard]] result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Syncs the bytes, renames, syncs the folder; `later`: renames alone. Nothing may be written
  /// afterwards.
  [[nodiscard]] result<void> commit(durability how = durability::synced);

 private:
  explicit atomic_file(std::filesystem::path file) : file_(std::move(file)) {}
  [[nodiscard]] result<void> open();
  void begin_writeback();
  [[nodiscard]] tl::unexpected<error> failed(const std::string& what) const;

  std::filesystem::path file_;           // as the caller calls it
  std::filesystem::path target_;         // what is replaced
  std::optional<struct stat> replaced_;  // what was there
  std::filesystem::path temporary_;      // what is written until then; empty: there is none
  descriptor open_;                      // to it; holds its lock
  std::uint64_t position_ = 0;           // where the next write goes
  std::uint64_t handed_over_ = 0;        // the disk has been asked to write what is before
};

}  // namespace troupe::engine
