#include "cluster/checkpoints/checkpoint_check.hpp"

#include <string>
#include <system_error>
#include <utility>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "engine/checksums/file_digest.hpp"
#include "engine/slices/file_faults.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;
using engine::file_fault;
using faults = std::vector<file_fault>;

constexpr std::size_t checksum_bytes = 32;

/// What differs in a file whose manifest has a checksum of the whole file.
faults altered_parts(const fs::path& file, const checkpoint_manifest::file& wanted) {
  const auto sum = engine::digest_of_file(file, checksum_bytes);
  if (!sum) return {{"", "cannot be read: " + sum.error().text}};
  if (sum->digits == wanted.whole) return {};
  const std::string altered(engine::altered_since);
  if (wanted.sums.tensors.empty()) return {{"", altered + "its checksum differs"}};
  auto found = engine::find_altered(file, wanted.sums);
  return found.empty() ? faults{{"", altered + "its header differs, which names the tensors"}}
                       : found;
}

/// Says what is lost with a file that is not there.
file_fault with_tensors(file_fault fault, const fs::path& file, const engine::file_sums& wanted) {
  std::error_code why;
  const auto& held = wanted.tensors;
  if (held.empty() || fs::exists(file, why)) return fault;
  fault.what += "; it held tensor \"" + held.begin()->first + '"';
  if (held.size() > 1) fault.what += " and " + std::to_string(held.size() - 1) + " more";
  return fault;
}

faults faults_of(const fs::path& file, const checkpoint_manifest::file& wanted, check_depth depth) {
  if (auto length = engine::find_length_fault(file, wanted.sums.bytes))
    return {with_tensors(*std::move(length), file, wanted.sums)};
  if (depth == check_depth::lengths) return {};
  auto found =
      wanted.whole.empty() ? engine::find_altered(file, wanted.sums) : altered_parts(file, wanted);
  if (!found.empty()) return found;
  return depth == check_depth::values ? engine::find_unfinite(file) : faults();
}

}  // namespace

std::optional<checkpoint_fault> find_name_fault(const fs::path& folder,
                                                const checkpoint_manifest& manifest) {
  std::error_code why;
  const auto path = fs::absolute(folder, why).lexically_normal();  // what "." and a last / mean
  const auto named = step_of_name((path / "").parent_path().filename().string());
  if (!named || *named == manifest.step) return std::nullopt;
  return checkpoint_fault{folder / checkpoint_manifest_name, "",
                          "is of step " + std::to_string(manifest.step) +
                              ", and not of the step that its folder is named after: give the "
                              "folder its own name back"};
}

std::vector<checkpoint_fault> find_faults(const fs::path& folder,
                                          const checkpoint_manifest& manifest, check_depth depth) {
  std::vector<checkpoint_fault> all;
  if (auto fault = find_name_fault(folder, manifest)) all.push_back(*std::move(fault));
  for (const auto& [name, wanted] : manifest.files) {
    const auto file = file_of(folder, manifest, name);
    if (!file) continue;
    for (auto& [tensor, what] : faults_of(*file, wanted, depth))
      all.push_back({*file, std::move(tensor), std::move(what)});
  }
  return all;
}

}  // namespace troupe::cluster
