#include "cluster/checkpoints/checkpoint_files.hpp"

#include <charconv>
#include <system_error>

namespace troupe::cluster {

namespace fs = std::filesystem;

std::optional<std::uint64_t> step_of_name(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, status] = std::from_chars(name.data() + prefix.size(), end, step);
  return stop == end && status == std::errc() ? std::optional(step) : std::nullopt;
}

std::optional<fs::path> file_of(const fs::path& checkpoint, const checkpoint_manifest& manifest,
                                const std::string& name) {
  const auto here = checkpoint / name;
  std::error_code absent;
  if (!manifest.is_on_hosts() || fs::exists(here, absent)) return here;
  const auto kept =
      (checkpoint / "").parent_path().parent_path() / slices_folder / manifest.slices / name;
  return fs::exists(kept, absent) ? std::optional(kept) : std::nullopt;
}

std::vector<std::string> files_elsewhere(const fs::path& checkpoint,
                                         const checkpoint_manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, file] : manifest.files)
    if (!file_of(checkpoint, manifest, name)) names.push_back(name);
  return names;
}

}  // namespace troupe::cluster
