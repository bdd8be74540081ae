#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "cluster/checkpoints/checkpoint_check.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/checkpoints/checkpoint_names.hpp"

// What a folder of checkpoints holds; checkpoint_folder.cpp writes it.

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

/// The step in the name of one that is half written, behind which something follows.
std::optional<std::uint64_t> half_written_step_in(std::string_view name) {
  name.remove_prefix(half_written_prefix.size());
  return step_of_name(name.substr(0, name.find('-', step_prefix.size())));
}

}  // namespace

result<std::vector<std::string>> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code why;
  fs::directory_iterator at(folder, why);
  for (const fs::directory_iterator end; !why && at != end; at.increment(why))
    names.push_back(at->path().filename().string());
  if (why) return fail(errc::bad_data, folder.string() + " cannot be read: " + why.message());
  return names;
}

bool whole_checkpoint::is_evaluated() const {
  std::error_code why;
  return fs::exists(folder / checkpoint_folder::evaluated_name, why);
}

result<std::vector<std::string>> checkpoint_folder::slices() const {
  const auto all = steps();
  if (!all) return tl::unexpected(all.error());
  std::vector<std::string> names;
  for (const auto step : *all) {
    const auto manifest = read_manifest(path_of(step) / manifest_name);
    if (!manifest) return tl::unexpected(manifest.error());
    if (manifest->is_on_hosts()) names.push_back(manifest->slices);
  }
  return names;
}

result<std::vector<checkpoint_folder::entry>> checkpoint_folder::entries() const {
  const auto names = names_in(folder_);
  if (!names) return tl::unexpected(names.error());
  std::vector<entry> all;
  for (const auto& name : *names) {
    const bool is_half = name.starts_with(half_written_prefix);
    if (const auto step = is_half ? half_written_step_in(name) : step_of_name(name))
      all.push_back({folder_ / name, *step, is_half});
  }
  std::ranges::sort(all, {}, &entry::step);
  return all;
}

result<std::vector<std::uint64_t>> checkpoint_folder::steps() const {
  struct stat about {};
  if (::stat(folder_.c_str(), &about) != 0 && errno == ENOENT) return {};
  const auto all = entries();
  if (!all) return tl::unexpected(all.error());
  std::error_code why;
  std::vector<std::uint64_t> steps;
  for (const auto& [folder, step, is_half] : *all)
    if (!is_half && fs::exists(folder / manifest_name, why)) steps.push_back(step);
  std::ranges::reverse(steps);
  return steps;
}

result<checkpoint_folder::newest_whole> checkpoint_folder::newest(std::uint64_t before) const {
  auto all = steps();
  if (!all) return tl::unexpected(all.error());
  std::erase_if(*all, [before](std::uint64_t step) { return step >= before; });
  newest_whole out;
  for (const auto step : *all) {
    auto whole = read_whole(path_of(step));
    if (whole) {
      out.found = *std::move(whole);
      break;
    }
    const auto& why = whole.error();
    if (why.code == errc::bad_config && out.of_another_troupe.empty())
      out.of_another_troupe = why.text;
    out.passed_over.push_back(why.text);
  }
  return out;
}

result<std::optional<whole_checkpoint>> checkpoint_folder::latest() const {
  auto looked = newest();
  if (!looked) return tl::unexpected(looked.error());
  if (looked->passed_over.empty()) return std::move(looked->found);
  return fail(errc::bad_data, looked->passed_over.front() + words_on_older(looked->found));
}

result<whole_checkpoint> checkpoint_folder::of_step(std::uint64_t step) const {
  const auto all = steps();
  if (!all) return tl::unexpected(all.error());
  if (std::ranges::find(*all, step) != all->end()) return read_whole(path_of(step));
  std::string known;
  for (const auto each : *all) known += (known.empty() ? "" : ", ") + std::to_string(each);
  return fail(errc::bad_data, folder_.string() + " has no checkpoint of step " +
                                  std::to_string(step) + "; it has " +
                                  (known.empty() ? "none" : "those of steps " + known));
}

std::string words_on_older(const std::optional<whole_checkpoint>& older) {
  if (!older) return "; there is no older one that is whole";
  const auto step = std::to_string(older->manifest.step);
  return "; the one of step " + step + " is whole: --resume " + step;
}

result<std::vector<fs::path>> checkpoints_at(const fs::path& path) {
  std::error_code why;
  const auto all = checkpoint_folder(path).entries();
  if (!all) return tl::unexpected(all.error());
  if (fs::exists(path / checkpoint_folder::manifest_name, why)) return std::vector{path};
  if (step_of_name(path.filename().string()))
    return fail(errc::bad_data,
                path.string() + " is no checkpoint: it has no " + checkpoint_folder::manifest_name);
  std::vector<fs::path> found;
  for (const auto& each : *all)
    if (!each.half_written) found.push_back(each.folder);
  if (!found.empty()) return found;
  return fail(errc::bad_data,
              path.string() +
                  " holds no checkpoint; name the folder that --checkpoint-dir named, or one of "
                  "the folders step-N in it");
}

result<whole_checkpoint> read_whole(const fs::path& folder) {
  auto manifest = read_manifest(folder / checkpoint_folder::manifest_name);
  if (!manifest) return tl::unexpected(manifest.error());
  if (const auto fault = find_name_fault(folder, *manifest))
    return fail(errc::bad_data, fault->text());
  if (!manifest->is_on_hosts()) {
    const auto faults = find_faults(folder, *manifest, check_depth::checksums);
    if (!faults.empty()) return fail(errc::bad_data, faults.front().text());
  }
  return whole_checkpoint{folder, std::move(*manifest)};
}

}  // namespace troupe::cluster
