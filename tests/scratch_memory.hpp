#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/scratch_folder.hpp"

namespace troupe::tests {

/// This user's folder in shared memory, where UCX's segments are.
inline std::filesystem::path shared_memory_folder() {
  const std::filesystem::path folder = "/dev/shm/troupe-" + std::to_string(::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw std::runtime_error("no folder in shared memory");
  return folder;
}

/// A folder in it where UCX makes its segments while this lives, of this process and of those that
/// it starts, so that what they leave is told from what others on this machine do.
class scratch_memory {
 public:
  scratch_memory() { ::setenv("UCX_POSIX_DIR", folder_.path().c_str(), 1); }
  scratch_memory(const scratch_memory&) = delete;
  scratch_memory& operator=(const scratch_memory&) = delete;
  ~scratch_memory() { ::unsetenv("UCX_POSIX_DIR"); }

  /// The names of what is in it. A process that is killed while it makes a segment leaves one,
  /// which the next process that starts or ends removes.
  [[nodiscard]] std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    return names;
  }

 private:
  scratch_folder folder_{shared_memory_folder()};
};

}  // namespace troupe::tests
