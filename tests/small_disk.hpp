#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace troupe::tests {

/// A file system in memory, of one MiB unless it is said otherwise, while it lives. Needs root.
class small_disk {
 public:
  explicit small_disk(std::filesystem::path where, const std::string& options = "size=1m")
      : where_(std::move(where)) {
    std::filesystem::create_directory(where_);
    made_ = ::mount("tmpfs", where_.c_str(), "tmpfs", 0, options.c_str()) == 0;
    reason_ = std::strerror(errno);
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk() {
    if (made_) ::umount2(where_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool made() const { return made_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  /// From now on nothing can be written there.
  [[nodiscard]] bool make_read_only() const {
    return ::mount("tmpfs", where_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  std::filesystem::path where_;
  bool made_ = false;
  std::string reason_;
};

}  // namespace troupe::tests
