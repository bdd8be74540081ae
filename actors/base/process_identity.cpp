#include "actors/base/process_identity.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace troupe::actors {
namespace {

/// What /proc/PID/stat says.
struct stat_line {
  char state = 0;
  std::int64_t started = 0;
};

std::optional<stat_line> read_stat(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The program's name stands in parentheses and may hold any character.
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end_of_name + 1));
  stat_line out;
  fields >> out.state;
  constexpr int fields_between = 18;  // state is field 3, the start time field 22
  std::string skipped;
  for (int i = 0; i < fields_between; ++i) fields >> skipped;
  fields >> out.started;
  return fields ? std::optional(out) : std::nullopt;
}

std::string namespace_of_ours(const char* kind) {
  std::error_code problem;
  const auto name = std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind, problem);
  return problem ? "" : name.string();
}

}  // namespace

process_identity own_identity() {
  process_identity out;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const auto pids = namespace_of_ours("pid");
  out.pid = ::getpid();
  const auto stat = read_stat(out.pid);
  if (boot.empty() || pids.empty() || !stat) return out;
  out.host = boot + " " + pids;
  out.network = namespace_of_ours("net");
  out.started = stat->started;
  return out;
}

std::uint64_t peak_memory_bytes() noexcept {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

process_state state_of(const process_identity& process) {
  if (process.pid <= 0) return process_state::unknown;
  const auto stat = read_stat(process.pid);
  if (!stat) {
    const bool none = ::kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
    return none ? process_state::gone : process_state::unknown;
  }
  if (stat->started != process.started) return process_state::gone;
  switch (stat->state) {
    case 'T':
      return process_state::stopped;
    case 't':
      return process_state::traced;
    case 'Z':
    case 'X':
      return process_state::gone;
    default:
      return process_state::alive;
  }
}

}  // namespace troupe::actors
