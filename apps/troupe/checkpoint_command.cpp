#include "apps/troupe/checkpoint_command.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/troupe/checkpoint_facts.hpp"
#include "apps/troupe/checkpoint_inspection.hpp"
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

// ---- list

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

struct listed {
  checkpoint_folder::entry what;
  std::int64_t written = 0;
  std::uint64_t bytes = 0;
  std::string state;          // whole, torn, half written
  std::string problem;        // of a torn one
  std::size_t elsewhere = 0;  // files that are on other hosts alone
};

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
  if (row.elsewhere > 0) text += ", " + counted(row.elsewhere, "file") + " on other hosts alone";
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
    answer.complaint = std::to_string(faulty) + " of " + counted(folders->size(), "checkpoint") +
                       " cannot be resumed from";
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
      return inspect_checkpoint(request, now);
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
