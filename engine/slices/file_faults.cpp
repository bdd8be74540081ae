#include "engine/slices/file_faults.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include <system_error>

#include "engine/state/mapped_file.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

std::string quoted(const std::string& tensor) {
  return "tensor \"" + tensor + '"';
}

/// What a disk does not give back has not been altered.
bool is_unread(const std::string& why) {
  return why.starts_with(unread_words);
}

file_fault other_header() {
  return {"", std::string(altered_since) + "its header differs, which names the tensors"};
}

}  // namespace

std::string without_name(const fs::path& file, const error& why) {
  const auto name = file.string() + ' ';
  return why.text.starts_with(name) ? why.text.substr(name.size()) : why.text;
}

std::optional<file_fault> find_length_fault(const fs::path& file, std::uint64_t bytes) {
  std::error_code absent;
  const auto found = fs::file_size(file, absent);
  if (absent) return file_fault{"", "cannot be read: " + absent.message()};
  if (found == bytes) return std::nullopt;
  file_fault fault{"", "has " + std::to_string(found) + " bytes, and its checkpoint wrote " +
                           std::to_string(bytes)};
  const auto opened = tensor_reader::open(file);
  if (opened) return fault;
  const auto why = without_name(file, opened.error());
  fault.what += ": " + why;
  if (const auto begin = why.find("tensor \""); begin != std::string::npos) {
    const auto name = begin + std::string_view("tensor \"").size();
    fault.tensor = why.substr(name, why.find("\" ", name) - name);
  }
  return fault;
}

std::vector<file_fault> find_altered(const fs::path& file, const file_sums& wanted) {
  const std::string altered(altered_since);
  const auto opened = tensor_reader::open(file);
  if (!opened) {
    const auto why = without_name(file, opened.error());
    return {{"", is_unread(why) ? why : altered + "its header " + why}};
  }
  if (!wanted.header.empty()) {
    const auto header = header_sum_of(**opened, wanted.by);
    if (!header) return {{"", without_name(file, header.error())}};
    if (*header != wanted.header) return {other_header()};
  }
  std::vector<file_fault> found;
  for (const auto& entry : (*opened)->tensors()) {
    const auto known = wanted.tensors.find(entry.name);
    if (known == wanted.tensors.end()) return {other_header()};
    const auto sum = tensor_sum_of(**opened, entry, wanted.by);
    if (sum && *sum == known->second) continue;
    const auto why =
        sum ? quoted(entry.name) + " has another checksum" : without_name(file, sum.error());
    found.push_back(
        {entry.name, is_unread(why) ? why + " (" + quoted(entry.name) + ')' : altered + why});
  }
  return found;
}

std::vector<file_fault> find_unfinite(const fs::path& file) {
  const auto opened = tensor_reader::open(file);
  if (!opened) return {{"", without_name(file, opened.error())}};
  std::vector<file_fault> found;
  for (const auto& entry : (*opened)->tensors()) {
    const auto value = unfinite_value(**opened, entry);
    if (!value)
      found.push_back({entry.name, without_name(file, value.error())});
    else if (!value->empty())
      found.push_back({entry.name, "holds " + std::string(*value) + " in " + quoted(entry.name)});
  }
  return found;
}

result<std::string_view> unfinite_value(const tensor_reader& file,
                                        const safetensors_entry& tensor) {
  if (!c10::isFloatingType(tensor.type)) return "";
  std::string_view found;
  const auto read = file.for_each_run(tensor, [&](const at::Tensor& run) {
    if (found == "NaN" || at::isfinite(run).all().item<bool>()) return result<void>();
    found = at::isnan(run).any().item<bool>() ? "NaN" : "infinity";
    return result<void>();
  });
  if (!read) return tl::unexpected(read.error());
  return found;
}

}  // namespace troupe::engine
