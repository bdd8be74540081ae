#include "cluster/checkpoints/checkpoint_manifest.hpp"

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "cluster/launch/file_digest.hpp"
#include "engine/state/mapped_file.hpp"

namespace troupe::cluster {
namespace {

using nlohmann::json;

constexpr int format = 1;

json to_json(const checkpoint_manifest::file& file) {
  json made{{"bytes", file.bytes}, {"blake2b", file.checksum}};
  if (!file.tensors.empty()) made["tensors"] = file.tensors;
  return made;
}

checkpoint_manifest::file to_file(const json& from) {
  checkpoint_manifest::file made{from.at("bytes").get<std::uint64_t>(),
                                 from.at("blake2b").get<std::string>()};
  if (from.contains("tensors"))
    made.tensors = from.at("tensors").get<std::map<std::string, std::string>>();
  return made;
}

constexpr const char* checksum_name = "checksum";

/// Of all that a manifest says, whatever the order and the spaces that it is written with.
std::string checksum_of(json manifest) {
  manifest.erase(checksum_name);
  const auto text = manifest.dump();
  running_digest digest(32);
  digest.add(std::as_bytes(std::span(text)));
  return digest.digits();
}

tl::unexpected<error> bad(std::string text) {
  return fail(errc::bad_data, std::move(text));
}

}  // namespace

std::string to_text(const checkpoint_manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) files[name] = to_json(file);
  json made{{"troupe_checkpoint", format},
            {"step", manifest.step},
            {"settings", manifest.settings},
            {"files", std::move(files)}};
  made[checksum_name] = checksum_of(made);
  return made.dump(2) + "\n";
}

result<checkpoint_manifest> parse_manifest(std::string_view text) try {
  const auto parsed = json::parse(text);
  if (const auto version = parsed.at("troupe_checkpoint").get<int>(); version != format)
    return bad("is of another Troupe: its format is number " + std::to_string(version) +
               ", and this program knows number " + std::to_string(format) +
               "; take the Troupe that wrote it");
  if (parsed.contains(checksum_name) && parsed.at(checksum_name) != checksum_of(parsed))
    return bad("is not as its checkpoint wrote it: its own checksum differs");
  checkpoint_manifest out;
  out.step = parsed.at("step").get<std::uint64_t>();
  out.settings = parsed.at("settings").get<std::map<std::string, std::string>>();
  for (const auto& [name, each] : parsed.at("files").get_ref<const json::object_t&>()) {
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.'))
      return bad("says '" + name + "', which is no name of a checkpoint's file");
    out.files[name] = to_file(each);
  }
  if (!out.files.contains(std::string(checkpoint_weights_name)))
    return bad("names no " + std::string(checkpoint_weights_name));
  return out;
} catch (const json::exception& problem) {
  return bad(std::string("is no manifest: ") + problem.what());
}

result<checkpoint_manifest> read_manifest(const std::filesystem::path& file) {
  const auto opened = engine::open_to_read(file);
  if (!opened) return tl::unexpected(opened.error());
  const auto mapped = engine::mapped_file::map(file, *opened);
  if (!mapped) return tl::unexpected(mapped.error());
  const auto bytes = (*mapped)->bytes();
  return parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()})
      .map_error([&](error why) {
        why.text.insert(0, file.string() + ' ');
        return why;
      });
}

}  // namespace troupe::cluster
