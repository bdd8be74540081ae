#include "cluster/config/sources/set_flag.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "cluster/config/sources/toml_values.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

// The shell has put variables into what stands on a command line.
std::optional<std::string> no_variable(const std::string&) {
  return std::nullopt;
}

/// Both in one table, so that the value's node outlives its reading.
toml::table parsed(const option& entry, const std::string& text) {
  toml::table bare{{"value", text}};
  try {
    toml::table made = toml::parse("value = " + text);
    const auto* const value = made.get("value");
    const auto* const words = std::get_if<list_field>(&entry.field);
    const bool is_text = std::holds_alternative<text_field>(entry.field);
    const bool takes_texts = is_text || (words != nullptr && !words->numbers);
    const bool is_array = words != nullptr && value != nullptr && value->is_array();
    const bool fits =
        made.size() == 1 && value != nullptr && (!takes_texts || value->is_string() || is_array);
    return fits ? std::move(made) : std::move(bare);
  } catch (const toml::parse_error&) {
    return bare;
  }
}

/// A checked value; what a --set says is never searched for variables.
accepted<option_value> value_of_text(const option& entry, const std::string& text) {
  const auto table = parsed(entry, text);
  const toml::node& node = *table.get("value");
  if (const auto* bare = node.as_string()) return check_value(entry, bare->get());
  auto value = value_of(entry, node, no_variable);
  return value ? accepted<option_value>(std::move(*value)) : tl::unexpected(value.error().why);
}

std::vector<std::string> full_names(const std::vector<option>& known) {
  std::vector<std::string> names;
  for (const option& entry : known) names.push_back(entry.name());
  return names;
}

/// Why a key is none, with the nearest one that is.
std::string no_such_key(const set_parts& parts, const std::vector<option>& known) {
  const auto tables = table_names(known);
  if (std::ranges::find(tables, parts.table) != tables.end())
    return unknown_key(known, parts.table, parts.key);
  const auto names = full_names(known);
  const auto meant = nearest(parts.table + "." + parts.key, {names.begin(), names.end()});
  if (meant) return ": unknown key; did you mean " + std::string(*meant) + "?";
  return unknown_table(known, parts.table);
}

/// "--set lr=0.1": the key that probably was meant.
std::string not_split(const std::string& text, const std::vector<option>& known) {
  const std::string word = text.substr(0, text.find('='));
  return "--set " + text + ": is not TABLE.KEY=VALUE" + elsewhere(known, word);
}

/// Which of the tables [[node]] is meant; why none is.
std::string wrong_element(const option& entry, const set_parts& parts, std::size_t nodes) {
  if (entry.repeated && !parts.element)
    return ": say which " + parts.table + ": " + parts.table + "[0]." + parts.key +
           " is of the first";
  if (!entry.repeated && parts.element) return ": there is one [" + parts.table + "]";
  if (!entry.repeated || *parts.element < nodes) return "";
  return ": there is no such [[" + parts.table + "]]; the files have " + std::to_string(nodes) +
         ", from 0";
}

}  // namespace

std::optional<set_parts> split_set(std::string_view text) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const auto name = text.substr(0, equals);
  const auto dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  set_parts parts{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1)),
                  std::string(text.substr(equals + 1))};
  const auto bracket = parts.table.find('[');
  if (bracket == std::string::npos) return parts;
  std::size_t index = 0;
  const char* const begin = parts.table.data() + bracket + 1;
  const char* const end = parts.table.data() + parts.table.size();
  const auto [stop, status] = std::from_chars(begin, end, index);
  if (status != std::errc() || stop + 1 != end || *stop != ']') return std::nullopt;
  parts.element = index;
  parts.table.resize(bracket);
  return parts;
}

std::string text_of(const set_parts& parts) {
  const option any_text{"", "", "", "", "", "", text_field{}, ""};
  const auto table = parsed(any_text, parts.value);
  return table.get("value")->as_string()->get();
}

settings_layer parse_sets(const std::vector<std::string>& texts, const std::vector<option>& known,
                          std::size_t nodes) {
  settings_layer made;
  std::map<std::string, std::size_t> places;  // in made.settings, by path
  for (const auto& text : texts) {
    const auto parts = split_set(text);
    if (!parts) {
      made.complaints.push_back({"", not_split(text, known)});
      continue;
    }
    const std::string name = text.substr(0, text.find('='));
    const auto complain = [&](const std::string& why) {
      made.complaints.push_back({parts->table, "--set " + name + why});
    };
    const option* const entry = find_option(known, parts->table, parts->key);
    if (entry == nullptr) {
      complain(no_such_key(*parts, known));
      continue;
    }
    if (const auto why = wrong_element(*entry, *parts, nodes); !why.empty()) {
      complain(why);
      continue;
    }
    auto value = value_of_text(*entry, parts->value);
    if (!value) {
      complain(": " + value.error());
      continue;
    }
    setting given{entry, std::move(*value), "", parts->element, setting_origin::set};
    const auto [place, is_new] = places.try_emplace(given.path(), made.settings.size());
    if (is_new) {
      made.settings.push_back(std::move(given));
    } else {
      made.settings[place->second] = std::move(given);
    }
  }
  return made;
}

}  // namespace troupe::cluster
