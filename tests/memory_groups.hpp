#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::tests {

/// Control groups of the kernel's (version 1), each with so much memory for all its processes.
class memory_groups {
 public:
  explicit memory_groups(std::uint64_t bytes) : bytes_(bytes) {}
  memory_groups(const memory_groups&) = delete;
  memory_groups& operator=(const memory_groups&) = delete;
  ~memory_groups() {
    for (const auto& each : made_) ::rmdir(each.c_str());
  }

  /// Whether this system has them, and lets us make one.
  static bool work() {
    const auto probe = root / ("troupe-probe-" + std::to_string(::getpid()));
    if (::mkdir(probe.c_str(), 0755) != 0) return false;
    const bool limits = std::filesystem::exists(probe / "memory.limit_in_bytes");
    ::rmdir(probe.c_str());
    return limits;
  }

  /// A new group, and a script that runs a program with all that it starts in it.
  std::string script(const std::filesystem::path& file, const std::string& program) {
    const auto group =
        root / ("troupe-" + std::to_string(::getpid()) + "-" + std::to_string(made_.size()));
    REQUIRE(::mkdir(group.c_str(), 0755) == 0);
    made_.push_back(group);
    std::ofstream(group / "memory.limit_in_bytes") << bytes_;
    std::ofstream(file) << "#!/bin/sh\necho $$ > " << (group / "cgroup.procs").string()
                        << " || exit 99\nexec " << program << " \"$@\"\n";
    std::filesystem::permissions(file, std::filesystem::perms(0755));
    return file;
  }

  /// The most that the group which was made last has had.
  [[nodiscard]] double most() const {
    double bytes = 0;
    std::ifstream(made_.back() / "memory.max_usage_in_bytes") >> bytes;
    return bytes;
  }

 private:
  static inline const std::filesystem::path root = "/sys/fs/cgroup/memory";

  std::uint64_t bytes_;
  std::vector<std::filesystem::path> made_;
};

}  // namespace troupe::tests
