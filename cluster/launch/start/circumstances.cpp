#include "cluster/launch/start/circumstances.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cluster/launch/start/child_start.hpp"

namespace troupe::cluster {
namespace {

std::string content_of(const char* file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The lines of /proc/PID/status that do not change by themselves.
std::string lasting_lines() {
  constexpr std::array names{
      "Umask:",  "Uid:",    "Gid:",        "Groups:",  "CapInh:",       "CapPrm:",      "CapEff:",
      "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:", "Mems_allowed:"};
  std::ifstream in("/proc/thread-self/status");
  std::string out;
  for (std::string line; std::getline(in, line);)
    if (std::ranges::any_of(names, [&](const char* name) { return line.starts_with(name); }))
      out += line + "\n";
  return out;
}

}  // namespace

std::string circumstances() {
  auto out = lasting_lines();
  if (out.empty()) return {};
  out += content_of("/proc/self/cgroup");
  out += content_of("/proc/self/oom_score_adj");
  errno = 0;
  const int priority = ::getpriority(PRIO_PROCESS, 0);
  return out + std::to_string(errno == 0 ? priority : 0);
}

std::set<std::string> environment_to_compare(char* const* environment) {
  constexpr std::array<std::string_view, 4> late{started_by, "UCX_POSIX_DIR",
                                                 "UCX_POSIX_RX_BUFS_GROW", "NCCL_SOCKET_IFNAME"};
  std::set<std::string> out;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (std::ranges::find(late, entry.substr(0, entry.find('='))) == late.end()) out.emplace(entry);
  }
  return out;
}

}  // namespace troupe::cluster
