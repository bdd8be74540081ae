#include "engine/state/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "messages/base/bad_json.hpp"

namespace troupe::engine {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little endian");

constexpr std::size_t length_bytes = 8;
constexpr std::uint64_t most_header_bytes = 100'000'000;  // the reference reader's limit too
constexpr std::size_t most_dimensions = 64;               // as many as a torch tensor may have
constexpr std::string_view metadata_key = "__metadata__";

struct type_row {
  std::string_view name;
  at::ScalarType type;
};
constexpr std::array<type_row, 10> types{{{"F64", at::ScalarType::Double},
                                          {"F32", at::ScalarType::Float},
                                          {"F16", at::ScalarType::Half},
                                          {"BF16", at::ScalarType::BFloat16},
                                          {"I64", at::ScalarType::Long},
                                          {"I32", at::ScalarType::Int},
                                          {"I16", at::ScalarType::Short},
                                          {"I8", at::ScalarType::Char},
                                          {"U8", at::ScalarType::Byte},
                                          {"BOOL", at::ScalarType::Bool}}};

tl::unexpected<error> bad(std::string text) {
  return fail(errc::bad_data, std::move(text));
}

tl::unexpected<error> bad_tensor(const std::string& name, const std::string& what) {
  return bad("tensor \"" + name + "\" " + what);
}

std::string known_types() {
  std::string list;
  for (const auto& row : types) list += (list.empty() ? "" : " ") + std::string(row.name);
  return list;
}

// Files that are given in place of a safetensors file by mistake, told by their first bytes.
std::optional<std::string> mistaken_for(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string convert =
      "; convert it in Python: safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
      "\"FILE.safetensors\")";
  if (text.starts_with("PK\x03\x04")) return "is a zip archive as torch.save writes it" + convert;
  // A pickle's 0x80 and protocol may also be the length of a small header: look for its brace.
  const bool has_brace = text.size() > length_bytes && text[length_bytes] == '{';
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5 && !has_brace)
    return "is a Python pickle as an old torch.save wrote it" + convert;
  if (text.starts_with("version https://git-lfs"))
    return "is a Git LFS pointer, not the file itself; fetch it with git lfs pull";
  if (text.starts_with("\x89HDF\r\n")) return "is an HDF5 file; convert it to safetensors";
  return std::nullopt;
}

result<std::string_view> header_text(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (auto mistake = mistaken_for(bytes)) return bad(std::move(*mistake));
  if (bytes.size() < length_bytes)
    return bad("has " + std::to_string(bytes.size()) + " bytes, too few for a safetensors file");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), length_bytes);
  if (length > file_bytes - length_bytes)
    return bad("says that its header has " + std::to_string(length) + " bytes, but only " +
               std::to_string(file_bytes - length_bytes) +
               " follow: it is truncated, or no safetensors file");
  if (length > most_header_bytes)
    return bad("has a header of " + std::to_string(length) + " bytes; at most " +
               std::to_string(most_header_bytes) + " are allowed");
  if (length > bytes.size() - length_bytes) return bad("was cut while it was read");
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + length_bytes,
                          static_cast<std::size_t>(length));
}

// The header as JSON and its keys in the order they stand in. JSON itself keeps neither the order
// nor the fact that a key came twice.
struct ordered_object {
  json object;
  std::vector<std::string> keys;
};

result<ordered_object> parse_object(std::string_view text) {
  ordered_object parsed;
  std::optional<std::string> twice;
  std::unordered_set<std::string> outer;
  std::unordered_set<std::string> inner;
  const auto note = [&](int depth, json::parse_event_t event, json& value) {
    if (event != json::parse_event_t::key || depth > 2) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (depth == 1) inner.clear();
    if (!(depth == 1 ? outer : inner).insert(key).second && !twice) twice = key;
    if (depth == 1) parsed.keys.push_back(key);
    return true;
  };
  if (!text.starts_with('{')) return bad("has a header that is no JSON object");
  try {
    parsed.object = json::parse(text, note);
  } catch (const json::parse_error& problem) {
    return bad("has a header that " + words_on_bad_json(text, problem.byte));
  } catch (const json::exception&) {  // all that else can be wrong with a text
    return bad("has a header with a number that is too large");
  }
  if (twice) return bad("has the key \"" + *twice + "\" twice in its header");
  return parsed;
}

result<void> check_metadata(const json& object) {
  if (!object.is_object()) return bad("has a __metadata__ that is no JSON object");
  for (const auto& [key, value] : object.items())
    if (!value.is_string()) return bad("has a __metadata__ whose \"" + key + "\" is no text");
  return {};
}

// Bytes that a shape needs; none where that overflows or torch could not compute the strides.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType type) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(type));
  bool empty = false;
  for (const auto size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

// A JSON list of whole numbers that fit a signed 64-bit integer.
std::optional<std::vector<std::int64_t>> parse_numbers(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& item : *found) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

result<at::ScalarType> parse_type(const std::string& name, const json& entry) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) return bad_tensor(name, "has no dtype");
  const auto& text = found->get_ref<const std::string&>();
  for (const auto& row : types)
    if (row.name == text) return row.type;
  return bad_tensor(name, "has the dtype " + text + "; known are " + known_types());
}

result<safetensors_entry> parse_entry(const std::string& name, const json& entry,
                                      std::uint64_t data_bytes) {
  if (!entry.is_object()) return bad_tensor(name, "is described by no JSON object");
  const auto type = parse_type(name, entry);
  if (!type) return tl::unexpected(type.error());
  auto shape = parse_numbers(entry, "shape");
  if (!shape || shape->size() > most_dimensions)
    return bad_tensor(name, "has no shape of at most 64 sizes, none negative");
  const auto offsets = parse_numbers(entry, "data_offsets");
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1])
    return bad_tensor(name, "has no data_offsets of two rising numbers");
  const auto begin = static_cast<std::uint64_t>((*offsets)[0]);
  const auto end = static_cast<std::uint64_t>((*offsets)[1]);
  if (end > data_bytes)
    return bad_tensor(name, "ends at byte " + std::to_string(end) + " of the data, but only " +
                                std::to_string(data_bytes) +
                                " bytes follow: the file is truncated");
  const auto needed = bytes_of(*shape, *type);
  if (!needed) return bad_tensor(name, "has a shape that is too large for any memory");
  if (*needed != end - begin)
    return bad_tensor(name, "needs " + std::to_string(*needed) + " bytes for its shape and type, " +
                                "but its data_offsets give " + std::to_string(end - begin));
  return safetensors_entry{name, *type, std::move(*shape), begin, end};
}

result<void> check_layout(const std::vector<safetensors_entry>& tensors, std::uint64_t data_bytes) {
  std::vector<const safetensors_entry*> sorted;
  sorted.reserve(tensors.size());
  for (const auto& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* left, const auto* right) {
    return std::pair(left->begin, left->end) < std::pair(right->begin, right->end);
  });
  std::uint64_t filled = 0;
  for (const auto* tensor : sorted) {
    if (tensor->begin < filled) return bad_tensor(tensor->name, "overlaps the tensor before it");
    if (tensor->begin > filled)
      return bad_tensor(tensor->name, "stands behind a gap that belongs to no tensor");
    filled = tensor->end;
  }
  if (filled == data_bytes) return {};
  return bad("has " + std::to_string(data_bytes - filled) + " bytes that belong to no tensor");
}

}  // namespace

std::optional<std::string_view> safetensors_type_name(at::ScalarType type) {
  for (const auto& row : types)
    if (row.type == type) return row.name;
  return std::nullopt;
}

std::uint64_t front_bytes_of(std::span<const std::byte> first, std::uint64_t file_bytes) {
  if (first.size() < length_bytes) return first.size();
  std::uint64_t length = 0;
  std::memcpy(&length, first.data(), length_bytes);
  if (length > most_header_bytes) return first.size();
  return std::min(file_bytes, std::max<std::uint64_t>(first.size(), length_bytes + length));
}

result<safetensors_header> parse_safetensors_header(std::span<const std::byte> bytes) {
  return parse_safetensors_header(bytes, bytes.size());
}

result<safetensors_header> parse_safetensors_header(std::span<const std::byte> front,
                                                    std::uint64_t file_bytes) {
  const auto text = header_text(front, file_bytes);
  if (!text) return tl::unexpected(text.error());
  const auto parsed = parse_object(*text);
  if (!parsed) return tl::unexpected(parsed.error());
  safetensors_header header;
  header.data_begin = length_bytes + text->size();
  const auto data_bytes = file_bytes - header.data_begin;
  for (const auto& key : parsed->keys) {
    const auto& value = parsed->object.at(key);
    if (key == metadata_key) {
      if (auto sound = check_metadata(value); !sound) return tl::unexpected(sound.error());
      continue;
    }
    auto entry = parse_entry(key, value, data_bytes);
    if (!entry) return tl::unexpected(entry.error());
    header.tensors.push_back(std::move(*entry));
  }
  if (auto sound = check_layout(header.tensors, data_bytes); !sound)
    return tl::unexpected(sound.error());
  return header;
}

std::string format_safetensors_header(const safetensors_header& header) {
  std::string text = "{";
  for (const auto& tensor : header.tensors) {
    if (text.size() > 1) text += ",";
    text += json(tensor.name).dump() + R"(:{"dtype":")" +
            std::string(safetensors_type_name(tensor.type).value()) + R"(","shape":)" +
            json(tensor.shape).dump() + R"(,"data_offsets":[)" + std::to_string(tensor.begin) +
            "," + std::to_string(tensor.end) + "]}";
  }
  text += "}";
  text.append((length_bytes - text.size() % length_bytes) % length_bytes, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(length_bytes, '\0');
  std::memcpy(bytes.data(), &length, length_bytes);
  return bytes + text;
}

}  // namespace troupe::engine
