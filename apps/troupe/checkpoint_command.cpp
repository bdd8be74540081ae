#include "apps/troupe/checkpoint_command.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/checkpoints/checkpoint_check.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "engine/state/output_file.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/format.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/base/printable.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using cluster::check_depth;
using cluster::checkpoint_fault;
using cluster::checkpoint_folder;
using cluster::checkpoint_manifest;
using contents = checkpoint_manifest::contents;
using engine::tensor_reader;
using nlohmann::ordered_json;

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

/// When a checkpoint was written: its manifest comes last.
std::int64_t written_at(const fs::path& folder) {
  struct stat about {};
  const auto manifest = folder / checkpoint_folder::manifest_name;
  if (::stat(manifest.c_str(), &about) != 0 && ::stat(folder.c_str(), &about) != 0) return 0;
  return about.st_mtim.tv_sec;
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code why;
  for (fs::directory_iterator at(folder, why), end; !why && at != end; at.increment(why)) {
    std::error_code unknown;
    const auto size = at->file_size(unknown);
    if (!unknown) bytes += size;
  }
  return bytes;
}

std::uint64_t bytes_of(const checkpoint_manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.sums.bytes;
  return bytes;
}

/// Of files that hosts keep, what this one has.
std::uint64_t bytes_here(const fs::path& folder, const checkpoint_manifest& manifest) {
  auto bytes = bytes_of(manifest);
  for (const auto& name : cluster::files_elsewhere(folder, manifest))
    bytes -= manifest.files.at(name).sums.bytes;
  return bytes;
}

fs::path manifest_of(const fs::path& checkpoint) {
  return checkpoint / checkpoint_folder::manifest_name;
}

// ---- list

struct listed {
  checkpoint_folder::entry what;
  std::int64_t written = 0;
  std::uint64_t bytes = 0;
  std::string state;          // whole, torn, half written
  std::string problem;        // of a torn one
  std::size_t elsewhere = 0;  // files that are on other hosts alone
};

std::string count_text(std::size_t count, const std::string& what) {
  return std::to_string(count) + ' ' + what + (count == 1 ? "" : "s");
}

listed look_at(const checkpoint_folder::entry& what) {
  listed row{what, written_at(what.folder), bytes_in(what.folder), "whole", ""};
  if (what.half_written) {
    row.state = "half written";
    return row;
  }
  const auto manifest = cluster::read_manifest(manifest_of(what.folder));
  if (!manifest) {
    row.problem = manifest.error().text;
  } else {
    const auto faults = cluster::find_faults(what.folder, *manifest, check_depth::lengths);
    if (!faults.empty()) row.problem = faults.front().text();
    row.elsewhere = cluster::files_elsewhere(what.folder, *manifest).size();
    if (manifest->is_on_hosts()) row.bytes = bytes_here(what.folder, *manifest);
  }
  if (!row.problem.empty()) row.state = "torn";
  return row;
}

ordered_json to_json(const std::vector<listed>& rows, std::int64_t now) {
  auto all = ordered_json::array();
  for (const auto& row : rows)
    all.push_back({{"step", row.what.step},
                   {"folder", row.what.folder.string()},
                   {"written", time_text(row.written)},
                   {"age_seconds", now - row.written},
                   {"bytes", row.bytes},
                   {"state", row.state},
                   {"problem", row.problem},
                   {"files_elsewhere", row.elsewhere}});
  return all;
}

std::string state_text(const listed& row) {
  auto text = row.state;
  if (!row.problem.empty()) text += ": " + printable(row.problem);
  if (row.elsewhere > 0) text += ", " + count_text(row.elsewhere, "file") + " on other hosts alone";
  return text;
}

result<checkpoint_answer> list(const checkpoint_request& request, std::int64_t now) {
  std::error_code absent;
  if (fs::exists(manifest_of(request.where), absent))
    return fail(errc::bad_data, request.where.string() +
                                    " is one checkpoint; inspect or verify it, or list the folder "
                                    "that it is in");
  const auto entries = checkpoint_folder(request.where).entries();
  if (!entries) return tl::unexpected(entries.error());
  if (entries->empty())
    return fail(errc::bad_data, request.where.string() + " holds no checkpoint");
  std::vector<listed> rows;
  for (const auto& each : *entries) rows.push_back(look_at(each));
  if (request.as_json)
    return checkpoint_answer{
        ordered_json{{"folder", request.where.string()}, {"checkpoints", to_json(rows, now)}}.dump(
            2) +
            "\n",
        ""};
  std::string text =
      format("%10s  %-23s  %8s  %9s  %s\n", "step", "written", "age", "size", "state");
  for (const auto& row : rows)
    text += format("%10llu  %-23s  %8s  %9s  %s\n", static_cast<unsigned long long>(row.what.step),
                   time_text(row.written).c_str(), age_text(now - row.written).c_str(),
                   bytes_text(row.bytes).c_str(), state_text(row).c_str());
  text += "The files' lengths were compared; troupe checkpoint verify compares every byte.\n";
  return checkpoint_answer{std::move(text), ""};
}

// ---- inspect

/// The checkpoint that a path means; of several the newest.
result<fs::path> newest_at(const fs::path& where) {
  return cluster::checkpoints_at(where).map(
      [](const std::vector<fs::path>& all) { return all.back(); });
}

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
  auto tensors = ordered_json::array();
  for (const auto& each : tensors_of(file)) {
    ordered_json made{{"name", each.name},
                      {"dtype", type_text(each)},
                      {"shape", each.shape},
                      {"bytes", each.end - each.begin}};
    const auto& sums = file.known.sums.tensors;
    const auto sum = sums.find(each.name);
    if (sum != sums.end()) made["blake2b"] = sum->second;
    tensors.push_back(std::move(made));
  }
  ordered_json made{{"name", file.name},
                    {"holds", file.known.holds == contents::weights ? "weights" : "state"},
                    {"bytes", file.known.sums.bytes}};
  if (file.known.whole.empty())
    made["header_blake2b"] = file.known.sums.header;
  else
    made["blake2b"] = file.known.whole;
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

result<checkpoint_answer> inspect(const checkpoint_request& request, std::int64_t now) {
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
    const ordered_json whole{{"folder", folder->string()},      {"step", manifest->step},
                             {"written", time_text(written)},   {"age_seconds", now - written},
                             {"bytes", bytes_of(*manifest)},    {"settings", manifest->settings},
                             {"files", std::move(listed_files)}};
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
  for (const auto& each : *files) text += to_text(each);
  return checkpoint_answer{std::move(text), ""};
}

// ---- verify

struct verified {
  fs::path folder;
  std::optional<checkpoint_manifest> manifest;
  std::vector<checkpoint_fault> faults;
  std::vector<std::string> elsewhere = {};  // files that are on other hosts alone
};

verified verify_one(const fs::path& folder) {
  auto manifest = cluster::read_manifest(manifest_of(folder));
  if (!manifest) {
    const auto file = manifest_of(folder);
    const auto& why = manifest.error().text;
    const auto name = file.string() + ' ';
    return {
        folder, std::nullopt, {{file, "", why.starts_with(name) ? why.substr(name.size()) : why}}};
  }
  auto faults = cluster::find_faults(folder, *manifest, check_depth::values);
  auto elsewhere = cluster::files_elsewhere(folder, *manifest);
  return {folder, std::move(*manifest), std::move(faults), std::move(elsewhere)};
}

ordered_json to_json(const verified& one) {
  auto faults = ordered_json::array();
  for (const auto& [file, tensor, what] : one.faults)
    faults.push_back({{"file", file.string()}, {"tensor", tensor}, {"what", what}});
  ordered_json made{{"folder", one.folder.string()},
                    {"whole", one.faults.empty() && one.elsewhere.empty()},
                    {"faults", std::move(faults)},
                    {"files_elsewhere", one.elsewhere}};
  if (one.manifest) {
    made["step"] = one.manifest->step;
    made["bytes"] = bytes_of(*one.manifest);
  }
  return made;
}

std::string to_text(const verified& one) {
  std::string text;
  for (const auto& each : one.faults) text += printable(each.text()) + "\n";
  const auto here = one.manifest ? one.manifest->files.size() - one.elsewhere.size() : 0;
  if (one.faults.empty() && here > 0)
    text = one.folder.string() + (one.elsewhere.empty() ? ": whole, " : ": here ") +
           std::to_string(here) + " files, " + bytes_text(bytes_here(one.folder, *one.manifest)) +
           "; every byte is as it was written, and every value is finite\n";
  for (const auto& name : one.elsewhere)
    text += one.folder.string() + ": " + printable(name) + " is not on this host, but on " +
            joined_with_and(one.manifest->files.at(name).hosts) + "\n";
  return text;
}

result<checkpoint_answer> verify(const checkpoint_request& request) {
  const auto folders = cluster::checkpoints_at(request.where);
  if (!folders) return tl::unexpected(folders.error());
  checkpoint_answer answer;
  auto all = ordered_json::array();
  std::size_t faulty = 0;
  for (const auto& folder : *folders) {
    const auto one = verify_one(folder);
    if (!one.faults.empty()) ++faulty;
    if (request.as_json)
      all.push_back(to_json(one));
    else
      answer.text += to_text(one);
  }
  if (request.as_json) answer.text = ordered_json{{"checkpoints", std::move(all)}}.dump(2) + "\n";
  if (faulty > 0)
    answer.complaint = std::to_string(faulty) + " of " + std::to_string(folders->size()) +
                       (folders->size() == 1 ? " checkpoint" : " checkpoints") +
                       " cannot be gone on from";
  return answer;
}

// ---- export

/// Whether what is to be written is part of what is read.
bool is_own_file(const fs::path& folder, const checkpoint_manifest& manifest,
                 const fs::path& file) {
  return engine::is_same_file(manifest_of(folder), file) ||
         std::ranges::any_of(manifest.files, [&](const auto& each) {
           const auto own = cluster::file_of(folder, manifest, each.first);
           return own && engine::is_same_file(*own, file);
         });
}

/// The model's weights in its order, out of the files that hold them.
result<engine::tensor_stream> weights_in(const fs::path& folder,
                                         const checkpoint_manifest& manifest) {
  engine::tensor_files files;
  for (const auto& name : manifest.names_of(contents::weights)) {
    const auto file = cluster::file_of(folder, manifest, name);
    if (!file)
      return fail(errc::bad_data, folder.string() + ": " + name + " is not on this host, but on " +
                                      joined_with_and(manifest.files.at(name).hosts) + "; copy " +
                                      std::string(cluster::slices_folder) + "/" + manifest.slices +
                                      "/" + name + " from there into " + folder.string());
    auto opened = tensor_reader::open(*file);
    if (!opened) return tl::unexpected(opened.error());
    files.push_back(std::move(*opened));
  }
  if (manifest.is_of_two_files()) return engine::stream_of(files.front());
  return engine::stream_of(files, manifest.weights);
}

result<checkpoint_answer> export_weights(const checkpoint_request& request) {
  const auto folder = newest_at(request.where);
  if (!folder) return tl::unexpected(folder.error());
  auto manifest = cluster::read_manifest(manifest_of(*folder));
  if (!manifest) return tl::unexpected(manifest.error());
  if (is_own_file(*folder, *manifest, request.file))
    return fail(errc::bad_data, request.file.string() +
                                    " is a file of the checkpoint itself; "
                                    "name another one");
  // The optimizer's state is not asked for, so what may be wrong with it does no harm.
  std::erase_if(manifest->files,
                [](const auto& each) { return each.second.holds != contents::weights; });
  const auto faults = cluster::find_faults(*folder, *manifest, check_depth::checksums);
  if (!faults.empty()) return fail(errc::bad_data, faults.front().text());
  const auto weights = weights_in(*folder, *manifest);
  if (!weights) return tl::unexpected(weights.error());
  if (auto saved = engine::save_safetensors(request.file, *weights); !saved)
    return tl::unexpected(saved.error());
  std::error_code unknown;
  return checkpoint_answer{request.file.string() + ": the weights after step " +
                               std::to_string(manifest->step) + ", " +
                               std::to_string(weights->forms.size()) + " tensors, " +
                               bytes_text(fs::file_size(request.file, unknown)) + "\n",
                           ""};
}

}  // namespace

result<checkpoint_answer> run_checkpoint_command(const checkpoint_request& request,
                                                 std::int64_t now) {
  switch (request.verb) {
    case checkpoint_verb::inspect:
      return inspect(request, now);
    case checkpoint_verb::verify:
      return verify(request);
    case checkpoint_verb::export_weights:
      return export_weights(request);
    case checkpoint_verb::list:
      break;
  }
  return list(request, now);
}

}  // namespace troupe::apps
