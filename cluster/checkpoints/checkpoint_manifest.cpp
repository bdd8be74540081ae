#include "cluster/checkpoints/checkpoint_manifest.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "engine/checksums/file_digest.hpp"
#include "engine/state/mapped_file.hpp"

namespace troupe::cluster {
namespace {

using contents = checkpoint_manifest::contents;
using nlohmann::json;

constexpr int newest_format = 3;  // of hosts that keep the files; else 2 is written
constexpr int format_beside = 2;
constexpr int format_of_two_files = 1;
constexpr std::uint64_t most_manifest_bytes = std::uint64_t{256} << 20;
constexpr const char* format_name = "troupe_checkpoint";
constexpr const char* checksum_name = "checksum";
constexpr const char* holds_weights = "weights";
constexpr const char* holds_state = "state";

tl::unexpected<error> bad(std::string text) {
  return fail(errc::bad_data, std::move(text));
}

json to_json(const checkpoint_manifest::file& file, bool of_two_files) {
  json made{{"bytes", file.sums.bytes}};
  if (of_two_files) {
    made["blake2b"] = file.whole;
    if (file.sums.tensors.empty()) return made;
  } else {
    made["holds"] = file.holds == contents::weights ? holds_weights : holds_state;
    made["header"] = file.sums.header;
  }
  made["tensors"] = file.sums.tensors;
  if (!file.hosts.empty()) made["hosts"] = file.hosts;
  return made;
}

int format_of(const checkpoint_manifest& manifest) {
  if (manifest.is_of_two_files()) return format_of_two_files;
  return manifest.is_on_hosts() ? newest_format : format_beside;
}

result<checkpoint_manifest::file> to_file(const std::string& name, const json& from, int format) {
  using tensor_sums = std::map<std::string, std::string>;
  checkpoint_manifest::file made;
  made.sums.bytes = from.at("bytes").get<std::uint64_t>();
  if (format == format_of_two_files) {
    made.holds = name == checkpoint_weights_name ? contents::weights : contents::state;
    made.whole = from.at("blake2b").get<std::string>();
    if (from.contains("tensors")) made.sums.tensors = from.at("tensors").get<tensor_sums>();
    return made;
  }
  const auto holds = from.at("holds").get<std::string>();
  if (holds != holds_weights && holds != holds_state)
    return bad("says that '" + name + "' holds '" + holds + "', and not weights or state");
  made.holds = holds == holds_weights ? contents::weights : contents::state;
  made.sums.header = from.at("header").get<std::string>();
  made.sums.tensors = from.at("tensors").get<tensor_sums>();
  if (format == newest_format) made.hosts = from.at("hosts").get<std::vector<std::string>>();
  if (format == newest_format && made.hosts.empty()) return bad("names no host with " + name);
  return made;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && !name.starts_with('.');
}

/// Of all that a manifest says, whatever the order and the spaces that it is written with.
std::string checksum_of(json manifest) {
  manifest.erase(checksum_name);
  const auto text = manifest.dump();
  engine::running_digest digest(32);
  digest.add(std::as_bytes(std::span(text)));
  return digest.digits();
}

/// Whether each weight is in one file, and the files have no others.
result<void> check_weights(const checkpoint_manifest& of) {
  if (of.is_of_two_files()) {
    if (of.files.contains(std::string(checkpoint_weights_name))) return {};
    return bad("names no " + std::string(checkpoint_weights_name));
  }
  std::set<std::string> left(of.weights.begin(), of.weights.end());
  if (left.size() != of.weights.size()) return bad("names a weight of the model twice");
  for (const auto& [name, file] : of.files) {
    if (file.holds != contents::weights) continue;
    for (const auto& [tensor, sum] : file.sums.tensors)
      if (left.erase(tensor) == 0)
        return bad("names tensor \"" + tensor + "\" of " + name +
                   ", which is in another file too, or is no weight of the model");
  }
  if (left.empty()) return {};
  return bad("names no file with tensor \"" + *left.begin() + "\", a weight of the model");
}

result<void> take_files(checkpoint_manifest& into, const json& files, int format) {
  for (const auto& [name, each] : files.get_ref<const json::object_t&>()) {
    if (!is_plain_name(name))
      return bad("says '" + name + "', which is no name of a checkpoint's file");
    auto file = to_file(name, each, format);
    if (!file) return tl::unexpected(file.error());
    into.files[name] = std::move(*file);
  }
  return check_weights(into);
}

}  // namespace

std::vector<std::string> checkpoint_manifest::names_of(contents which) const {
  std::vector<std::string> names;
  for (const auto& [name, each] : files)
    if (each.holds == which) names.push_back(name);
  return names;
}

std::string to_text(const checkpoint_manifest& manifest) {
  const bool of_two_files = manifest.is_of_two_files();
  json files = json::object();
  for (const auto& [name, file] : manifest.files) files[name] = to_json(file, of_two_files);
  json made{{format_name, format_of(manifest)},
            {"step", manifest.step},
            {"settings", manifest.settings},
            {"files", std::move(files)}};
  if (!of_two_files) made["weights"] = manifest.weights;
  if (manifest.is_on_hosts()) made["slices"] = manifest.slices;
  if (const auto& scaler = manifest.scaler)
    made["loss_scale"] = {{"scale", scaler->scale}, {"applied", scaler->applied}};
  made[checksum_name] = checksum_of(made);
  return made.dump(2) + "\n";
}

result<checkpoint_manifest> parse_manifest(std::string_view text) try {
  if (text.empty()) return bad("is no manifest: it is empty");
  // The library takes it for the end of the text.
  if (text.find('\0') != text.npos)
    return bad("is no manifest: it holds bytes of value 0, as a loss of power leaves them");
  const auto parsed = json::parse(text);
  const auto format = parsed.at(format_name).get<int>();
  if (format < format_of_two_files || format > newest_format)
    return bad("is of another Troupe: its format is number " + std::to_string(format) +
               ", and this program knows numbers " + std::to_string(format_of_two_files) + " to " +
               std::to_string(newest_format) + "; take the Troupe that wrote it");
  if (parsed.contains(checksum_name) && parsed.at(checksum_name) != checksum_of(parsed))
    return bad("is not as its checkpoint wrote it: its own checksum differs");
  checkpoint_manifest out;
  out.step = parsed.at("step").get<std::uint64_t>();
  out.settings = parsed.at("settings").get<std::map<std::string, std::string>>();
  if (format != format_of_two_files) {
    out.weights = parsed.at("weights").get<std::vector<std::string>>();
    if (out.weights.empty()) return bad("names no weight of a model");
  }
  if (format == newest_format) {
    out.slices = parsed.at("slices").get<std::string>();
    if (!is_plain_name(out.slices))
      return bad("says '" + out.slices + "', which is no name of a folder of slices");
  }
  if (parsed.contains("loss_scale")) {
    const auto& kept = parsed.at("loss_scale");
    out.scaler = {kept.at("scale").get<double>(), kept.at("applied").get<std::uint32_t>()};
  }
  if (auto taken = take_files(out, parsed.at("files"), format); !taken)
    return tl::unexpected(taken.error());
  return out;
} catch (const json::exception& problem) {
  return bad(std::string("is no manifest: ") + problem.what());
}

result<checkpoint_manifest> read_manifest(const std::filesystem::path& file) {
  const auto opened = engine::open_to_read(file);
  if (!opened) return tl::unexpected(opened.error());
  const auto bytes = engine::read_front(file, *opened, most_manifest_bytes + 1);
  if (!bytes) return tl::unexpected(bytes.error());
  if (bytes->size() > most_manifest_bytes)
    return fail(errc::bad_data, file.string() + " is no manifest: it has more than " +
                                    std::to_string(most_manifest_bytes >> 20) + " MiB");
  return parse_manifest({reinterpret_cast<const char*>(bytes->data()), bytes->size()})
      .map_error([&](error why) {
        why.text.insert(0, file.string() + ' ');
        return why;
      });
}

}  // namespace troupe::cluster
