#include "cluster/checkpoints/checkpoint_manifest.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/checksums/running_checksum.hpp"
#include "engine/slices/slice_folder.hpp"
#include "engine/state/mapped_file.hpp"
#include "messages/base/bad_json.hpp"

namespace troupe::cluster {
namespace {

using contents = checkpoint_manifest::contents;
using engine::checksum_kind;
using nlohmann::json;

constexpr int newest_format = 4;
// Those of BLAKE2b.
constexpr int format_on_hosts = 3;
constexpr int format_beside = 2;
constexpr int format_of_two_files = 1;
constexpr std::uint64_t most_manifest_bytes = std::uint64_t{256} << 20;
constexpr std::size_t blake2b_bytes = 32;  // of an older manifest's own checksum
constexpr int most_depth = 64;
constexpr const char* format_name = "troupe_checkpoint";
constexpr const char* checksum_name = "checksum";
constexpr const char* slices_name = "slices";
constexpr const char* holds_weights = "weights";
constexpr const char* holds_state = "state";

tl::unexpected<error> bad(std::string text) {
  return fail(errc::bad_data, std::move(text));
}

tl::unexpected<error> no_manifest(const std::string& why) {
  return bad("is no manifest: it " + why);
}

/// What a member is to be, of which JSON has fewer kinds.
template <class Value>
constexpr const char* kind_of() {
  if constexpr (std::is_integral_v<Value>) return "a whole number";
  if constexpr (std::is_same_v<Value, double>) return "a number";
  if constexpr (std::is_same_v<Value, std::string>) return "a text";
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) return "a list of texts";
  if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) return "a list of whole numbers";
  if constexpr (std::is_same_v<Value, std::map<std::string, std::string>>)
    return "a table of texts";
  return "a table";
}

/// Whether it is a whole number that the type holds: JSON has one kind for all of them.
template <class Number>
bool is_whole(const json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() <=
             static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
}

/// Takes a member of a table, whose name in the manifest is `of` ("files.w."; empty: the manifest).
template <class Value>
result<void> take(const json& from, const std::string& of, const char* key, Value& into) {
  const auto found = from.find(key);  // none where that is no table
  const auto name = "\"" + of + key + "\"";
  if (found == from.end()) return no_manifest("has no " + name);
  bool fits = true;
  if constexpr (std::is_integral_v<Value>) fits = is_whole<Value>(*found);
  if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>)
    fits = found->is_array() && std::all_of(found->begin(), found->end(), is_whole<std::int64_t>);
  try {
    if (fits) into = found->get<Value>();
    if (fits) return {};
  } catch (const json::exception&) {  // of another kind, as below
  }
  return no_manifest("says of " + name + " what is not " + kind_of<Value>());
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

checksum_kind checksums_of(int format) {
  return format < newest_format ? checksum_kind::blake2b : checksum_kind::xxh3;
}

int format_of(const checkpoint_manifest& manifest) {
  if (manifest.is_of_two_files()) return format_of_two_files;
  const auto is_older = [](const auto& file) {
    return file.second.sums.by == checksum_kind::blake2b;
  };
  if (std::ranges::none_of(manifest.files, is_older)) return newest_format;
  return manifest.is_on_hosts() ? format_on_hosts : format_beside;
}

/// Of a checkpoint of two files.
result<checkpoint_manifest::file> to_one_of_two(const std::string& name, const json& from) {
  const auto of = "files." + name + ".";
  checkpoint_manifest::file made;
  made.holds = name == checkpoint_weights_name ? contents::weights : contents::state;
  made.sums.by = checksums_of(format_of_two_files);
  return take(from, of, "bytes", made.sums.bytes)
      .and_then([&] { return take(from, of, "blake2b", made.whole); })
      .and_then([&] {
        const bool has_tensors = from.contains("tensors");
        return has_tensors ? take(from, of, "tensors", made.sums.tensors) : result<void>();
      })
      .map([&] { return std::move(made); });
}

result<checkpoint_manifest::file> to_file(const std::string& name, const json& from,
                                          checksum_kind by, bool on_hosts) {
  const auto of = "files." + name + ".";
  checkpoint_manifest::file made;
  made.sums.by = by;
  std::string holds;
  auto taken = take(from, of, "bytes", made.sums.bytes)
                   .and_then([&] { return take(from, of, "holds", holds); })
                   .and_then([&] { return take(from, of, "header", made.sums.header); })
                   .and_then([&] { return take(from, of, "tensors", made.sums.tensors); });
  if (taken && on_hosts) taken = take(from, of, "hosts", made.hosts);
  if (!taken) return tl::unexpected(taken.error());
  if (holds != holds_weights && holds != holds_state)
    return bad("says that '" + name + "' holds '" + holds + "', and not weights or state");
  made.holds = holds == holds_weights ? contents::weights : contents::state;
  if (on_hosts && made.hosts.empty()) return bad("names no host with " + name);
  return made;
}

/// Settings may have bytes that are no UTF-8, as the names of files may.
std::string dumped(const json& from, int indent) {
  return from.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

/// Of all that a manifest says, whatever the order and the spaces that it is written with.
std::string checksum_of(json manifest, int format) {
  manifest.erase(checksum_name);
  const auto text = dumped(manifest, -1);
  engine::running_checksum sum(checksums_of(format), blake2b_bytes);
  sum.add(std::as_bytes(std::span(text)));
  return sum.digits();
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

result<void> take_files(checkpoint_manifest& into, const json& manifest, int format) {
  json::object_t files;
  if (auto taken = take(manifest, "", "files", files); !taken) return taken;
  for (const auto& [name, each] : files) {
    if (!engine::is_plain_name(name))
      return bad("says '" + name + "', which is no name of a checkpoint's file");
    auto file = format == format_of_two_files
                    ? to_one_of_two(name, each)
                    : to_file(name, each, checksums_of(format), into.is_on_hosts());
    if (!file) return tl::unexpected(file.error());
    into.files[name] = std::move(*file);
  }
  return check_weights(into);
}

result<void> take_scaler(checkpoint_manifest& into, const json& manifest) {
  const auto kept = manifest.find("loss_scale");
  if (kept == manifest.end()) return {};
  auto& scaler = into.scaler.emplace();
  return take(*kept, "loss_scale.", "scale", scaler.scale).and_then([&] {
    return take(*kept, "loss_scale.", "applied", scaler.applied);
  });
}

result<void> take_left_out(checkpoint_manifest& into, const json& manifest) {
  const auto kept = manifest.find("left_out");
  if (kept == manifest.end()) return {};
  return take(*kept, "left_out.", "train", into.left_out.train).and_then([&] {
    return take(*kept, "left_out.", "test", into.left_out.test);
  });
}

result<void> take_config(checkpoint_manifest& into, const json& manifest) {
  return manifest.contains("config") ? take(manifest, "", "config", into.config) : result<void>();
}

bool is_on_hosts(const json& manifest, int format) {
  return format == format_on_hosts || (format == newest_format && manifest.contains(slices_name));
}

result<void> take_slices(checkpoint_manifest& into, const json& manifest) {
  return take(manifest, "", slices_name, into.slices).and_then([&]() -> result<void> {
    if (engine::is_plain_name(into.slices)) return {};
    return bad("says '" + into.slices + "', which is no name of a folder of slices");
  });
}

result<void> take_weights(checkpoint_manifest& into, const json& manifest) {
  return take(manifest, "", "weights", into.weights).and_then([&]() -> result<void> {
    return into.weights.empty() ? bad("names no weight of a model") : result<void>();
  });
}

/// Sees what the parser takes without a word: a key that stands twice in a table, of which the
/// last counts, and tables within tables that are nested deeper than other functions could follow.
class strict_keys {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& value) {
    using happened = json::parse_event_t;
    if (depth > most_depth) too_deep_ = true;
    if (event == happened::object_start) open_.emplace_back();
    if (event == happened::object_end) open_.pop_back();
    if (event == happened::key && !open_.back().insert(value.get<std::string>()).second)
      twice_ = value.get<std::string>();
    return !too_deep_;
  }
  [[nodiscard]] result<void> check() const {
    if (too_deep_)
      return no_manifest("nests lists or tables more than " + std::to_string(most_depth) + " deep");
    return twice_ ? no_manifest("has the key \"" + *twice_ + "\" twice") : result<void>();
  }

 private:
  std::vector<std::set<std::string>> open_;  // the keys of each table that is open
  std::optional<std::string> twice_;
  bool too_deep_ = false;
};

result<json> parse(std::string_view text) try {
  if (text.empty()) return no_manifest("is empty");
  // The library takes it for the end of the text.
  if (text.find('\0') != text.npos)
    return no_manifest("holds bytes of value 0, as a loss of power leaves them");
  strict_keys keys;
  auto parsed = json::parse(text, std::ref(keys));
  return keys.check().map([&] { return std::move(parsed); });
} catch (const json::parse_error& problem) {
  return no_manifest(words_on_bad_json(text, problem.byte));
} catch (const json::exception&) {  // all that else can be wrong with a text
  return no_manifest("has a number that is too large");
}

result<int> format_of(const json& manifest) {
  int format = 0;
  if (auto taken = take(manifest, "", format_name, format); !taken)
    return tl::unexpected(taken.error());
  if (format < format_of_two_files || format > newest_format)
    return fail(errc::bad_config,
                "is of another Troupe: its format is number " + std::to_string(format) +
                    ", and this program knows numbers " + std::to_string(format_of_two_files) +
                    " to " + std::to_string(newest_format) + "; take the Troupe that wrote it");
  const bool is_summed = manifest.contains(checksum_name);
  // Versions that wrote none knew one format.
  if (!is_summed && format > format_of_two_files) return no_manifest("has no \"checksum\"");
  if (is_summed && manifest.at(checksum_name) != checksum_of(manifest, format))
    return bad("is not as its checkpoint wrote it: its own checksum differs");
  return format;
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
  const int format = format_of(manifest);
  json files = json::object();
  for (const auto& [name, file] : manifest.files) files[name] = to_json(file, of_two_files);
  json made{{format_name, format},
            {"step", manifest.step},
            {"settings", manifest.settings},
            {"files", std::move(files)}};
  if (!of_two_files) made["weights"] = manifest.weights;
  if (manifest.is_on_hosts()) made[slices_name] = manifest.slices;
  if (const auto& scaler = manifest.scaler)
    made["loss_scale"] = {{"scale", scaler->scale}, {"applied", scaler->applied}};
  if (manifest.left_out != checkpoint_manifest::unread_samples())
    made["left_out"] = {{"train", manifest.left_out.train}, {"test", manifest.left_out.test}};
  if (!manifest.config.empty()) made["config"] = manifest.config;
  made[checksum_name] = checksum_of(made, format);
  return dumped(made, 2) + "\n";
}

result<checkpoint_manifest> parse_manifest(std::string_view text) {
  const auto parsed = parse(text);
  if (!parsed) return tl::unexpected(parsed.error());
  const auto format = format_of(*parsed);
  if (!format) return tl::unexpected(format.error());
  checkpoint_manifest out;
  auto taken = take(*parsed, "", "step", out.step).and_then([&] {
    return take(*parsed, "", "settings", out.settings);
  });
  if (taken && *format != format_of_two_files) taken = take_weights(out, *parsed);
  if (taken && is_on_hosts(*parsed, *format)) taken = take_slices(out, *parsed);
  if (taken) taken = take_scaler(out, *parsed);
  if (taken) taken = take_left_out(out, *parsed);
  if (taken) taken = take_config(out, *parsed);
  if (taken) taken = take_files(out, *parsed, *format);
  if (!taken) return tl::unexpected(taken.error());
  return out;
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
