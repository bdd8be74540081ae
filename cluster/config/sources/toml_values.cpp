#include "cluster/config/sources/toml_values.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using read_value = tl::expected<option_value, refused_value>;

read_value refuse(std::string why, const toml::node& at) {
  return tl::unexpected(refused_value{std::move(why), &at});
}

// Built in place: moving a variant makes GCC 12 warn of uninitialised members under sanitizers.
template <class Kind>
accepted<option_value> holding(const Kind& value) {
  return accepted<option_value>(tl::in_place, std::in_place_type<Kind>, value);
}

/// A text's value; one with variables is read as a flag's.
accepted<option_value> text_value(const option& entry, const std::string& text,
                                  const variables& known) {
  const auto full = with_variables(text, known);
  if (!full) return tl::unexpected(full.error());
  return *full == text ? check_value(entry, text) : parse_value(entry, *full);
}

read_value list_value(const option& entry, const toml::array& array, const variables& known) {
  const bool numbers = std::get<list_field>(entry.field).numbers;
  std::vector<std::string> words;
  for (const toml::node& element : array) {
    const auto* const number = numbers ? element.as_integer() : nullptr;
    if (number != nullptr && number->get() >= 0 && number->get() < 1'000'000) {
      words.push_back(std::to_string(number->get()));
      continue;
    }
    if (numbers || !element.is_string())
      return refuse("expected " + std::string(kind_name(entry)) + ", got " + kind_of(element) +
                        " as element " + std::to_string(words.size() + 1) +
                        (numbers ? "; allowed: 0 to 999999" : ""),
                    element);
    auto word = with_variables(element.as_string()->get(), known);
    if (!word) return refuse(word.error(), element);
    words.push_back(std::move(*word));
  }
  auto checked = check_value(entry, words);
  return checked ? read_value(std::move(*checked)) : refuse(checked.error(), array);
}

std::vector<std::string_view> keys_of(const std::vector<option>& known, std::string_view table) {
  std::vector<std::string_view> keys;
  for (const option& entry : known)
    if (entry.table == table) keys.push_back(entry.key);
  return keys;
}

}  // namespace

read_value value_of(const option& entry, const toml::node& node, const variables& known) {
  const auto whole = [&](accepted<option_value> made) {
    return made ? read_value(std::move(*made)) : refuse(made.error(), node);
  };
  const auto checked = [&](const accepted<option_value>& made) {
    return whole(check_value(entry, *made));
  };
  if (const auto* text = node.as_string()) return whole(text_value(entry, text->get(), known));
  if (const auto* integer = node.as_integer()) return checked(holding(integer->get()));
  if (const auto* number = node.as_floating_point()) return checked(holding(number->get()));
  if (const auto* boolean = node.as_boolean()) return checked(holding(boolean->get()));
  const auto* const array = node.as_array();
  if (array != nullptr && std::holds_alternative<list_field>(entry.field))
    return list_value(entry, *array, known);
  const std::string allowed = allowed_values(entry);
  return refuse("expected " + std::string(kind_name(entry)) + ", got " + kind_of(node) +
                    (allowed.empty() ? "" : "; allowed: ") + allowed,
                node);
}

std::string kind_of(const toml::node& node) {
  if (node.is_string()) return "the text \"" + node.as_string()->get() + '"';
  std::ostringstream text;
  switch (node.type()) {
    case toml::node_type::integer:
      text << "the integer " << node.as_integer()->get();
      break;
    case toml::node_type::floating_point:
      text << "the number " << node.as_floating_point()->get();
      break;
    case toml::node_type::boolean:
      text << "the boolean " << (node.as_boolean()->get() ? "true" : "false");
      break;
    case toml::node_type::array:
      text << "an array";
      break;
    case toml::node_type::table:
      text << "a table";
      break;
    default:
      text << "a date or time";
  }
  return text.str();
}

std::string one_line(const toml::parse_error& wrong) {
  std::string why(wrong.description());
  std::replace(why.begin(), why.end(), '\n', ' ');
  return why;
}

std::vector<std::string_view> table_names(const std::vector<option>& known) {
  std::vector<std::string_view> names;
  for (const option& entry : known)
    if (names.empty() || names.back() != entry.table) names.push_back(entry.table);
  return names;
}

const option* find_option(const std::vector<option>& known, std::string_view table,
                          std::string_view key) {
  const auto found = std::ranges::find_if(
      known, [&](const option& entry) { return entry.table == table && entry.key == key; });
  return found == known.end() ? nullptr : &*found;
}

std::string elsewhere(const std::vector<option>& known, std::string_view key) {
  for (const option& entry : known)
    if (entry.key == key)
      return "; did you mean " + std::string(key) + " in [" + entry.table + "]?";
  return "";
}

std::string unknown_key(const std::vector<option>& known, std::string_view table,
                        std::string_view key) {
  const auto keys = keys_of(known, table);
  std::string hint = elsewhere(known, key);
  const auto meant = hint.empty() ? nearest(key, keys) : std::nullopt;
  if (meant) hint = "; did you mean " + std::string(*meant) + "?";
  return ": unknown key" + hint + "; allowed: " + join(keys);
}

std::string unknown_table(const std::vector<option>& known, std::string_view table) {
  const auto tables = table_names(known);
  const auto meant = nearest(table, tables);
  return ": unknown table" + (meant ? "; did you mean [" + std::string(*meant) + "]?" : "") +
         "; allowed: " + join(tables);
}

}  // namespace troupe::cluster
