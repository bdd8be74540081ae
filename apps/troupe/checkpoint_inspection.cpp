#include "apps/troupe/checkpoint_inspection.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/troupe/checkpoint_facts.hpp"
#include "cluster/checkpoints/checkpoint_check.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/format.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/base/printable.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using cluster::check_depth;
using cluster::checkpoint_manifest;
using contents = checkpoint_manifest::contents;
using engine::tensor_reader;
using nlohmann::ordered_json;

struct opened_file {
  std::string name;
  checkpoint_manifest::file known;
  std::shared_ptr<const tensor_reader> reader;  // null: it is on other hosts alone
};

result<std::vector<opened_file>> open_files(const fs::path& folder,
                                            const checkpoint_manifest& manifest) {
  const auto faults = cluster::find_faults(folder, manifest, check_depth::lengths);
  if (!faults.empty()) return fail(errc::bad_data, faults.front().text());
  std::vector<opened_file> all;
  for (const auto& [name, known] : manifest.files) {
    auto& file = all.emplace_back(opened_file{name, known, nullptr});
    const auto here = cluster::file_of(folder, manifest, name);
    if (!here) continue;
    auto reader = tensor_reader::open(*here);
    if (!reader) return tl::unexpected(reader.error());
    file.reader = std::move(*reader);
  }
  return all;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string type_text(const engine::safetensors_entry& tensor) {
  return std::string(engine::safetensors_type_name(tensor.type).value_or("?"));
}

std::vector<engine::safetensors_entry> tensors_of(const opened_file& file) {
  return file.reader ? file.reader->tensors() : std::vector<engine::safetensors_entry>();
}

ordered_json to_json(const opened_file& file) {
  const bool is_older = file.known.sums.by == engine::checksum_kind::blake2b;
  const std::string sum_name = is_older ? "blake2b" : "xxh3_128";
  auto tensors = ordered_json::array();
  for (const auto& each : tensors_of(file)) {
    ordered_json made{{"name", each.name},
                      {"dtype", type_text(each)},
                      {"shape", each.shape},
                      {"bytes", each.end - each.begin}};
    const auto& sums = file.known.sums.tensors;
    const auto sum = sums.find(each.name);
    if (sum != sums.end()) made[sum_name] = sum->second;
    tensors.push_back(std::move(made));
  }
  ordered_json made{{"name", file.name},
                    {"holds", file.known.holds == contents::weights ? "weights" : "state"},
                    {"bytes", file.known.sums.bytes}};
  if (file.known.whole.empty())
    made["header_" + sum_name] = file.known.sums.header;
  else
    made[sum_name] = file.known.whole;
  if (!file.known.hosts.empty()) made["hosts"] = file.known.hosts;
  made["tensors"] = std::move(tensors);
  return made;
}

std::string to_text(const opened_file& file) {
  const auto& hosts = file.known.hosts;
  const auto kept = hosts.empty() ? "" : ", kept by " + joined_with_and(hosts);
  const auto size = bytes_text(file.known.sums.bytes);
  if (!file.reader)
    return "\n" + printable(file.name) + ": " + size + kept + ", not on this host\n";
  const auto& tensors = file.reader->tensors();
  std::size_t widest = 0;
  for (const auto& each : tensors) widest = std::max(widest, each.name.size());
  std::string text = "\n" + printable(file.name) + ": " + size + ", " +
                     std::to_string(tensors.size()) + " tensors" + kept + "\n";
  for (const auto& each : tensors)
    text += format("  %-*s  %-4s  %9s  %s\n", static_cast<int>(widest),
                   printable(each.name).c_str(), type_text(each).c_str(),
                   bytes_text(each.end - each.begin).c_str(), shape_text(each.shape).c_str());
  return text;
}

}  // namespace

result<checkpoint_answer> inspect_checkpoint(const checkpoint_request& request, std::int64_t now) {
  const auto folder = newest_at(request.where);
  if (!folder) return tl::unexpected(folder.error());
  const auto manifest = cluster::read_manifest(manifest_of(*folder));
  if (!manifest) return tl::unexpected(manifest.error());
  const auto files = open_files(*folder, *manifest);
  if (!files) return tl::unexpected(files.error());
  const auto written = written_at(*folder);
  if (request.as_json) {
    auto listed_files = ordered_json::array();
    for (const auto& each : *files) listed_files.push_back(to_json(each));
    const ordered_json whole{{"folder", folder->string()},    {"step", manifest->step},
                             {"written", time_text(written)}, {"age_seconds", now - written},
                             {"bytes", bytes_of(*manifest)},  {"settings", manifest->settings},
                             {"config", manifest->config},    {"files", std::move(listed_files)}};
    return checkpoint_answer{whole.dump(2) + "\n", ""};
  }
  std::string text = format("%-22s %s\n", "folder", folder->c_str());
  text += format("%-22s %llu\n", "step", static_cast<unsigned long long>(manifest->step));
  text += format("%-22s %s, %s ago\n", "written", time_text(written).c_str(),
                 age_text(now - written).c_str());
  text += format("%-22s %s\n", "size", bytes_text(bytes_of(*manifest)).c_str());
  if (const auto& scaler = manifest->scaler)
    text += format("%-22s %.17g, for %u steps\n", "loss scale", scaler->scale,
                   static_cast<unsigned>(scaler->applied));
  for (const auto& [name, value] : manifest->settings)
    text += format("%-22s %s\n", printable(name).c_str(), printable(value).c_str());
  if (!manifest->config.empty()) text += "\nconfig, where it is not the default:\n";
  for (const auto& [name, value] : manifest->config)
    text += format("  %-28s %s\n", printable(name).c_str(), printable(value).c_str());
  for (const auto& each : *files) text += to_text(each);
  return checkpoint_answer{std::move(text), ""};
}

}  // namespace troupe::apps
