#include "cluster/config/toml_file.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

std::vector<std::string_view> table_names(const std::vector<option>& known) {
  std::vector<std::string_view> names;
  for (const option& entry : known)
    if (names.empty() || names.back() != entry.table) names.push_back(entry.table);
  return names;
}

std::vector<std::string_view> keys_of(const std::vector<option>& known, std::string_view table) {
  std::vector<std::string_view> keys;
  for (const option& entry : known)
    if (entry.table == table) keys.push_back(entry.key);
  return keys;
}

const option* find_option(const std::vector<option>& known, std::string_view table,
                          std::string_view key) {
  for (const option& entry : known)
    if (entry.table == table && entry.key == key) return &entry;
  return nullptr;
}

// "did you mean [optimizer] lr?": where a key that stands in the wrong table belongs.
std::string elsewhere(const std::vector<option>& known, std::string_view key) {
  for (const option& entry : known)
    if (entry.key == key)
      return "; did you mean " + std::string(key) + " in [" + std::string(entry.table) + "]?";
  return "";
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

// Built in place: moving a variant makes GCC 12 warn of uninitialised members under sanitizers.
template <class Kind>
accepted<option_value> holding(const Kind& value) {
  return accepted<option_value>(tl::in_place, std::in_place_type<Kind>, value);
}

accepted<option_value> value_of(const option& entry, const toml::node& node) {
  if (const auto* text = node.as_string()) return holding(text->get());
  if (const auto* integer = node.as_integer()) return holding(integer->get());
  if (const auto* number = node.as_floating_point()) return holding(number->get());
  if (const auto* boolean = node.as_boolean()) return holding(boolean->get());
  const std::string expected = "expected " + std::string(kind_name(entry)) + ", got ";
  const auto* array = node.as_array();
  if (array == nullptr || !std::holds_alternative<list_field>(entry.field)) {
    const std::string allowed = allowed_values(entry);
    return tl::unexpected(expected + kind_of(node) + (allowed.empty() ? "" : "; allowed: ") +
                          allowed);
  }
  std::vector<std::string> words;
  const bool numbers = std::get<list_field>(entry.field).numbers;
  for (const toml::node& element : *array) {
    const auto* number = numbers ? element.as_integer() : nullptr;
    if (number != nullptr && number->get() >= 0 && number->get() < 1'000'000) {
      words.push_back(std::to_string(number->get()));
      continue;
    }
    if (numbers || !element.is_string())
      return tl::unexpected(expected + kind_of(element) + " as element " +
                            std::to_string(words.size() + 1));
    words.push_back(element.as_string()->get());
  }
  return holding(words);
}

// Collects settings and complaints with their lines, so that the first by line can be reported.
class reader {
 public:
  reader(std::string_view name, const std::vector<option>& known) : name_(name), known_(known) {}

  void read_file(const toml::table& root) {
    for (auto&& [key, node] : root) {
      const std::vector<std::string_view> tables = table_names(known_);
      if (std::find(tables.begin(), tables.end(), key.str()) == tables.end()) {
        unknown_table(key, node);
      } else if (is_repeated(key.str())) {
        read_repeated(key, node);
      } else if (const toml::table* table = node.as_table()) {
        read_table(key.str(), *table);
      } else {
        complain(key, std::string(key.str()) + ": expected a table, got " + kind_of(node));
      }
    }
  }

  std::vector<std::string> complaints() const {
    std::vector<std::string> lines;
    for (const auto& [line, text] : complaints_) lines.push_back(text);
    return lines;
  }

  result<std::vector<setting>> finish() && {
    if (!complaints_.empty()) return fail(errc::bad_config, complaints_.begin()->second);
    std::vector<setting> out;
    for (auto& [line, entry] : settings_) out.push_back(std::move(entry));
    return out;
  }

 private:
  std::string at(const toml::key& key) const {
    return name_ + ":" + std::to_string(key.source().begin.line);
  }

  void complain(const toml::key& key, const std::string& why) {
    complaints_.emplace(key.source().begin.line, at(key) + ": " + why);
  }

  void unknown_table(const toml::key& key, const toml::node& node) {
    const std::string word(key.str());
    if (!node.is_table() && !node.is_array_of_tables()) {
      complain(key, word + ": unknown key outside of a table" + elsewhere(known_, word));
      return;
    }
    const std::vector<std::string_view> tables = table_names(known_);
    std::string why = "[" + word + "]: unknown table";
    if (const auto meant = nearest(word, tables))
      why += "; did you mean [" + std::string(*meant) + "]?";
    complain(key, why + "; allowed: " + join(tables));
  }

  bool is_repeated(std::string_view table) const {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const option& entry) { return entry.repeated && entry.table == table; });
  }

  // [[node]]: one table for each.
  void read_repeated(const toml::key& key, const toml::node& node) {
    const std::string word(key.str());
    const toml::array* const all = node.as_array();
    if (all == nullptr || !node.is_array_of_tables())
      return complain(key, "[" + word + "]: write [[" + word + "]], once for each " + word);
    for (std::size_t i = 0; i < all->size(); ++i) {
      const toml::table& content = *all->get(i)->as_table();
      if (content.empty())
        complain(key, "[[" + word + "]]: table " + std::to_string(i + 1) +
                          " of them is empty; name at least its name");
      read_table(word, content, i);
    }
  }

  void read_table(std::string_view table, const toml::table& content,
                  std::optional<std::size_t> element = {}) {
    for (auto&& [key, node] : content) {
      const std::string name = std::string(table) + "." + std::string(key.str());
      const option* entry = find_option(known_, table, key.str());
      if (entry == nullptr) {
        unknown_key(table, key);
        continue;
      }
      auto value = value_of(*entry, node);
      if (value) value = check_value(*entry, *value);
      if (value) {
        settings_.emplace(key.source().begin.line,
                          setting{entry, std::move(*value), at(key), element});
      } else {
        complain(key, name + ": " + value.error());
      }
    }
  }

  void unknown_key(std::string_view table, const toml::key& key) {
    const std::vector<std::string_view> keys = keys_of(known_, table);
    const std::string word(key.str());
    std::string why = std::string(table) + "." + word + ": unknown key";
    const std::string other_table = elsewhere(known_, word);
    if (!other_table.empty()) {
      why += other_table;
    } else if (const auto meant = nearest(word, keys)) {
      why += "; did you mean " + std::string(*meant) + "?";
    }
    complain(key, why + "; allowed: " + join(keys));
  }

  std::string name_;
  const std::vector<option>& known_;
  std::multimap<toml::source_index, setting> settings_;
  std::multimap<toml::source_index, std::string> complaints_;
};

result<std::string> read_text(const std::filesystem::path& file) {
  const auto refuse = [&file] {
    return fail(errc::bad_config,
                "--config: " + file.string() + " cannot be read: " + std::strerror(errno));
  };
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rb"), close);
  if (!in) return refuse();
  std::string text;
  char chunk[4096];
  while (const std::size_t count = std::fread(chunk, 1, sizeof chunk, in.get()))
    text.append(chunk, count);
  if (std::ferror(in.get()) != 0) return refuse();
  return text;
}

result<reader> read_all(std::string_view text, std::string_view name,
                        const std::vector<option>& known) {
  reader settings(name, known);
  try {
    settings.read_file(toml::parse(text, name));
  } catch (const toml::parse_error& wrong) {
    std::string why(wrong.description());
    std::replace(why.begin(), why.end(), '\n', ' ');
    return fail(errc::bad_config, std::string(name) + ":" +
                                      std::to_string(wrong.source().begin.line) +
                                      ": not valid TOML: " + why);
  }
  return settings;
}

}  // namespace

result<std::vector<setting>> parse_toml(std::string_view text, std::string_view name,
                                        const std::vector<option>& known) {
  return read_all(text, name, known).and_then([](reader settings) {
    return std::move(settings).finish();
  });
}

std::vector<std::string> toml_errors(const std::filesystem::path& file,
                                     const std::vector<option>& known) {
  const auto text = read_text(file);
  if (!text) return {};
  const auto settings = read_all(*text, file.string(), known);
  return settings ? settings->complaints() : std::vector<std::string>{settings.error().text};
}

result<std::vector<setting>> read_toml(const std::filesystem::path& file,
                                       const std::vector<option>& known) {
  return read_text(file).and_then(
      [&](const std::string& text) { return parse_toml(text, file.string(), known); });
}

}  // namespace troupe::cluster
