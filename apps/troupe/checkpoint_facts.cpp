#include "apps/troupe/checkpoint_facts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <vector>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "messages/base/format.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using cluster::checkpoint_folder;
using cluster::checkpoint_manifest;

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const auto amount = static_cast<double>(bytes);
  if (bytes < 1000) return std::to_string(bytes) + " B";
  if (bytes < 1'000'000) return format("%.1f kB", amount / 1e3);
  if (bytes < 1'000'000'000) return format("%.1f MB", amount / 1e6);
  return format("%.1f GB", amount / 1e9);
}

std::string age_text(std::int64_t seconds) {
  const auto text = [](std::int64_t count, const char* unit) {
    return std::to_string(count) + ' ' + unit;
  };
  if (seconds < 120) return text(std::max<std::int64_t>(seconds, 0), "s");
  if (seconds < 7200) return text(seconds / 60, "min");
  return seconds < 172'800 ? text(seconds / 3600, "h") : text(seconds / 86'400, "days");
}

std::string time_text(std::int64_t seconds) {
  const std::time_t at = seconds;
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&at, &parts) == nullptr) return "?";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

// Its manifest comes last.
std::int64_t written_at(const fs::path& folder) {
  struct stat about {};
  const auto manifest = manifest_of(folder);
  if (::stat(manifest.c_str(), &about) != 0 && ::stat(folder.c_str(), &about) != 0) return 0;
  return about.st_mtim.tv_sec;
}

std::uint64_t bytes_of(const checkpoint_manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.sums.bytes;
  return bytes;
}

std::uint64_t bytes_here(const fs::path& folder, const checkpoint_manifest& manifest) {
  auto bytes = bytes_of(manifest);
  for (const auto& name : cluster::files_elsewhere(folder, manifest))
    bytes -= manifest.files.at(name).sums.bytes;
  return bytes;
}

fs::path manifest_of(const fs::path& checkpoint) {
  return checkpoint / checkpoint_folder::manifest_name;
}

result<fs::path> newest_at(const fs::path& where) {
  return cluster::checkpoints_at(where).map(
      [](const std::vector<fs::path>& all) { return all.back(); });
}

}  // namespace troupe::apps
