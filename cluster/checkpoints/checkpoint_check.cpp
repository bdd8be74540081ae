#include "cluster/checkpoints/checkpoint_check.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "cluster/checkpoints/unfinite_value.hpp"
#include "engine/checksums/file_digest.hpp"
#include "engine/slices/summed_file.hpp"
#include "engine/state/tensor_reader.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;
using engine::tensor_reader;
using faults = std::vector<checkpoint_fault>;

constexpr std::size_t checksum_bytes = 32;
constexpr const char* altered = "is not as its checkpoint wrote it: ";

std::string quoted(const std::string& tensor) {
  return "tensor \"" + tensor + '"';
}

/// An error's text without the file's name at its front.
std::string without_name(const fs::path& file, const error& why) {
  const auto name = file.string() + ' ';
  return why.text.starts_with(name) ? why.text.substr(name.size()) : why.text;
}

/// A file that is too short or too long. A header that is whole says which tensor is cut.
checkpoint_fault wrong_length(const fs::path& file, std::uint64_t found, std::uint64_t wanted) {
  std::string what =
      "has " + std::to_string(found) + " bytes, and its checkpoint wrote " + std::to_string(wanted);
  std::string tensor;
  if (const auto opened = tensor_reader::open(file); !opened) {
    const auto why = without_name(file, opened.error());
    what += ": " + why;
    if (const auto begin = why.find("tensor \""); begin != std::string::npos) {
      const auto name = begin + std::string_view("tensor \"").size();
      tensor = why.substr(name, why.find("\" ", name) - name);
    }
  }
  return {file, std::move(tensor), std::move(what)};
}

checkpoint_fault other_header(const fs::path& file) {
  return {file, "", std::string(altered) + "its header differs, which names the tensors"};
}

/// Which tensors of a file are not those of the manifest, or that the header before them is not.
faults altered_tensors(const fs::path& file, const engine::file_sums& wanted) {
  const auto opened = tensor_reader::open(file);
  if (!opened) return {{file, "", altered + ("its header " + without_name(file, opened.error()))}};
  if (!wanted.header.empty()) {
    const auto header = engine::header_sum_of(**opened);
    if (!header) return {{file, "", without_name(file, header.error())}};
    if (*header != wanted.header) return {other_header(file)};
  }
  faults found;
  for (const auto& entry : (*opened)->tensors()) {
    const auto known = wanted.tensors.find(entry.name);
    if (known == wanted.tensors.end()) return {other_header(file)};
    const auto sum = engine::tensor_sum_of(**opened, entry);
    if (!sum)
      found.push_back({file, entry.name, altered + without_name(file, sum.error())});
    else if (*sum != known->second)
      found.push_back({file, entry.name, altered + (quoted(entry.name) + " has another checksum")});
  }
  return found;
}

/// The same of a manifest that has a checksum of the whole file.
faults altered_parts(const fs::path& file, const checkpoint_manifest::file& wanted) {
  const auto sum = engine::digest_of_file(file, checksum_bytes);
  if (!sum) return {{file, "", "cannot be read: " + sum.error().text}};
  if (sum->digits == wanted.whole) return {};
  if (wanted.sums.tensors.empty())
    return {{file, "", std::string(altered) + "its checksum differs"}};
  auto found = altered_tensors(file, wanted.sums);
  return found.empty() ? faults{other_header(file)} : found;
}

faults unfinite_tensors(const fs::path& file) {
  const auto opened = tensor_reader::open(file);
  if (!opened) return {{file, "", without_name(file, opened.error())}};
  faults found;
  for (const auto& entry : (*opened)->tensors()) {
    const auto value = unfinite_value(**opened, entry);
    if (!value)
      found.push_back({file, entry.name, without_name(file, value.error())});
    else if (!value->empty())
      found.push_back(
          {file, entry.name, "holds " + std::string(*value) + " in " + quoted(entry.name)});
  }
  return found;
}

faults faults_of(const fs::path& file, const checkpoint_manifest::file& wanted, check_depth depth) {
  std::error_code why;
  const auto bytes = fs::file_size(file, why);
  if (why) return {{file, "", "cannot be read: " + why.message()}};
  if (bytes != wanted.sums.bytes) return {wrong_length(file, bytes, wanted.sums.bytes)};
  if (depth == check_depth::lengths) return {};
  auto found =
      wanted.whole.empty() ? altered_tensors(file, wanted.sums) : altered_parts(file, wanted);
  if (!found.empty()) return found;
  return depth == check_depth::values ? unfinite_tensors(file) : faults();
}

}  // namespace

std::vector<checkpoint_fault> find_faults(const fs::path& folder,
                                          const checkpoint_manifest& manifest, check_depth depth) {
  faults all;
  for (const auto& [name, wanted] : manifest.files)
    std::ranges::move(faults_of(folder / name, wanted, depth), std::back_inserter(all));
  return all;
}

}  // namespace troupe::cluster
