#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace troupe::tests {

/// A control group of the kernel's, of version 1 or 2, with so much memory for all its processes.
/// It goes with the object, when they must have ended.
class memory_group {
 public:
  /// Why this system has none for us; empty: it has. Of version 2, which is taken where memory is
  /// not in version 1, the whole system's group has to give it on to others.
  static std::string unavailable() {
    std::string why;
    for (const auto& each : versions) {
      const auto own = wrong_with(each);
      if (own.empty()) return "";
      why += (why.empty() ? "no control group of memory can be made here: " : "; ") + own;
    }
    return why;
  }

  /// Throws where it cannot be made.
  memory_group(const std::string& name, std::uint64_t bytes)
      : kind_(kind()), folder_(std::filesystem::path(kind_.root) / name) {
    if (::mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST)
      throw std::runtime_error(folder_.string() + ": " + std::strerror(errno));
    if (!write(kind_.limit, std::to_string(bytes)))
      throw std::runtime_error("no limit can be set in " + folder_.string());
    if (std::filesystem::exists(folder_ / swap_limit)) write(swap_limit, "0");
  }
  memory_group(const memory_group&) = delete;
  memory_group& operator=(const memory_group&) = delete;
  ~memory_group() { ::rmdir(folder_.c_str()); }

  /// Where the number of a process is written that is to be in it.
  [[nodiscard]] std::filesystem::path members() const { return folder_ / "cgroup.procs"; }

  bool take_in(pid_t process) const { return write("cgroup.procs", std::to_string(process)); }

  /// The most bytes that it has had.
  [[nodiscard]] double most() const {
    double bytes = 0;
    std::ifstream(folder_ / kind_.peak) >> bytes;
    return bytes;
  }

 private:
  struct version {
    const char* root;
    const char* limit;
    const char* peak;
    const char* needs;  // for the two
  };
  static constexpr std::array<version, 2> versions{{
      {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes",
       "version 1 of control groups"},
      {"/sys/fs/cgroup", "memory.max", "memory.peak",
       "version 2, memory in cgroup.subtree_control and Linux 5.19"},
  }};
  static constexpr const char* swap_limit = "memory.swap.max";  // of version 2

  static std::string wrong_with(const version& which) {
    const auto probe =
        std::filesystem::path(which.root) / ("troupe-probe-" + std::to_string(::getpid()));
    if (::mkdir(probe.c_str(), 0755) != 0)
      return std::string(which.root) + ": " + std::strerror(errno);
    const bool has_files =
        std::filesystem::exists(probe / which.limit) && std::filesystem::exists(probe / which.peak);
    ::rmdir(probe.c_str());
    return has_files ? "" : std::string(which.root) + " needs " + which.needs;
  }

  static const version& kind() {
    for (const auto& each : versions)
      if (wrong_with(each).empty()) return each;
    throw std::runtime_error(unavailable());
  }

  bool write(const char* file, const std::string& text) const {
    std::ofstream out(folder_ / file);
    out << text;
    out.flush();
    return out.good();
  }

  const version& kind_;
  const std::filesystem::path folder_;
};

}  // namespace troupe::tests
