#include "engine/base/free_memory.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace troupe::engine {
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

struct group_room {
  std::uint64_t left = no_limit;
  std::uint64_t limit = 0;
};

/// What is left of a control group's limit; pages of files that nobody uses count as free.
group_room left_in_groups() {
  group_room least;
  for (const auto& group : control_groups("memory")) {
    const auto either = [&group](const char* second, const char* first) {
      const auto number = first_number(group / second);
      return number ? number : first_number(group / first);
    };
    const auto limit = either("memory.max", "memory.limit_in_bytes");
    if (!limit || *limit >= no_limit) continue;
    const auto used = either("memory.current", "memory.usage_in_bytes").value_or(0);
    const auto files = std::max(entry_of(group / "memory.stat", "inactive_file "),
                                entry_of(group / "memory.stat", "total_inactive_file "));
    const auto held = used - std::min(files, used);
    const auto left = *limit - std::min(held, *limit);
    if (left < least.left) least = {left, *limit};
  }
  return least;
}

}  // namespace

std::optional<std::uint64_t> first_number(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return number_in(line);
}

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
    const fs::path root =
        names.empty() ? fs::path("/sys/fs/cgroup") : fs::path("/sys/fs/cgroup") / controller;
    for (fs::path path = line.substr(second + 1); path.has_relative_path();
         path = path.parent_path())
      found.push_back(root / path.relative_path());
    found.push_back(root);
  }
  return found;
}

free_memory read_free_memory() {
  const std::uint64_t machine = entry_of("/proc/meminfo", "MemAvailable:") << 10;
  const auto groups = left_in_groups();
  if (groups.left < machine)
    return {.bytes = groups.left, .swap_bytes = 0, .group_limit_bytes = groups.limit};
  return {.bytes = machine,
          .swap_bytes = entry_of("/proc/meminfo", "SwapFree:") << 10,
          .group_limit_bytes = 0};
}

}  // namespace troupe::engine
