#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "cluster/doctor/host/examine_host.hpp"

namespace troupe::cluster::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t no_limit = std::uint64_t{1} << 60;  // version 1 writes a huge number

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t out = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), out);
  return status == std::errc() && stop != text.data() ? std::optional(out) : std::nullopt;
}

/// The number behind a word at a line's beginning ("MemAvailable:   123 kB").
std::uint64_t entry_of(const fs::path& file, const std::string& word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(word)) continue;
    const auto digits = line.find_first_of("0123456789", word.size());
    return digits == std::string::npos ? 0 : number_in(line.substr(digits)).value_or(0);
  }
  return 0;
}

/// The folders of this process's control group, from its own up to the root: of version 2, or of a
/// controller of version 1. A container may see its own as the root.
std::vector<fs::path> control_groups(const std::string& controller) {
  std::vector<fs::path> found;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto names = line.substr(first + 1, second - first - 1);
    const bool has = ("," + names + ",").find("," + controller + ",") != std::string::npos;
    if (!has && !names.empty()) continue;
    const fs::path root = names.empty() ? fs::path("/sys/fs/cgroup")
                                        : fs::path("/sys/fs/cgroup") / controller;
    for (fs::path path = line.substr(second + 1); path.has_relative_path();
         path = path.parent_path())
      found.push_back(root / path.relative_path());
    found.push_back(root);
  }
  return found;
}

double cpu_quota() {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& group : control_groups("cpu")) {
    double quota = -1;
    double period = 0;
    std::istringstream both(first_line(group / "cpu.max"));  // "max 100000", "150000 100000"
    if (!(both >> quota >> period)) {
      quota = static_cast<double>(number_in(first_line(group / "cpu.cfs_quota_us")).value_or(0));
      period = static_cast<double>(number_in(first_line(group / "cpu.cfs_period_us")).value_or(0));
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least == std::numeric_limits<double>::infinity() ? 0 : least;
}

/// What is left of a control group's limit; pages of files that nobody uses count as free.
std::uint64_t left_in_groups() {
  std::uint64_t least = no_limit;
  for (const auto& group : control_groups("memory")) {
    const auto number = [&group](const char* file) { return number_in(first_line(group / file)); };
    const auto limit = number("memory.max") ? number("memory.max") : number("memory.limit_in_bytes");
    if (!limit || *limit >= no_limit) continue;
    const auto used =
        number("memory.current") ? number("memory.current") : number("memory.usage_in_bytes");
    const auto files = std::max(entry_of(group / "memory.stat", "inactive_file "),
                                entry_of(group / "memory.stat", "total_inactive_file "));
    const auto held = used.value_or(0) - std::min(files, used.value_or(0));
    least = std::min(least, *limit - std::min(held, *limit));
  }
  return least;
}

std::string processor_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "";
}

}  // namespace

void examine_room(host_facts& out) {
  out.processor = processor_model();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    out.cores = static_cast<std::uint32_t>(CPU_COUNT(&set));
  out.quota_cores = cpu_quota();
  const std::uint64_t machine = entry_of("/proc/meminfo", "MemAvailable:") << 10;
  const auto groups = left_in_groups();
  out.memory_bytes = std::min(machine, groups);
  out.is_memory_limited = groups < machine;
}

}  // namespace troupe::cluster::doctor
