#include "cluster/config/sources/toml_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "cluster/config/sources/toml_values.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using position = std::pair<toml::source_index, toml::source_index>;  // line, column

position position_of(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

std::string place_of(std::string_view file, const toml::source_region& region) {
  const auto [line, column] = position_of(region);
  return std::string(file) + ":" + std::to_string(line) + ":" + std::to_string(column);
}

// Collects settings and complaints with their positions, so that they can be told in order.
class reader {
 public:
  reader(std::string_view name, const std::vector<option>& known, const variables& environment)
      : name_(name), known_(known), environment_(environment) {}

  void read_file(const toml::table& root) {
    const auto tables = table_names(known_);
    for (auto&& [key, node] : root) {
      const std::string word(key.str());
      if (std::ranges::find(tables, word) == tables.end()) {
        read_stranger(key, node);
      } else if (is_repeated(word)) {
        read_repeated(key, node);
      } else if (const toml::table* table = node.as_table()) {
        read_table(word, *table);
      } else {
        complain(word, node.source(), word + ": expected a table, got " + kind_of(node));
      }
    }
  }

  settings_layer finish() && {
    settings_layer all;
    for (auto& [at, each] : settings_) all.settings.push_back(std::move(each));
    for (auto& [at, each] : complaints_) all.complaints.push_back(std::move(each));
    return all;
  }

 private:
  void complain(std::string_view table, const toml::source_region& at, const std::string& why) {
    complaints_.emplace(position_of(at),
                        complaint{std::string(table), place_of(name_, at) + ": " + why});
  }

  void read_stranger(const toml::key& key, const toml::node& node) {
    const std::string word(key.str());
    if (!node.is_table() && !node.is_array_of_tables())
      return complain("", key.source(),
                      word + ": unknown key outside of a table" + elsewhere(known_, word));
    const auto meant = nearest(word, table_names(known_));
    complain(meant.value_or(""), key.source(), "[" + word + "]" + unknown_table(known_, word));
  }

  bool is_repeated(std::string_view table) const {
    return std::ranges::any_of(
        known_, [&](const option& entry) { return entry.repeated && entry.table == table; });
  }

  // [[node]]: one table for each.
  void read_repeated(const toml::key& key, const toml::node& node) {
    const std::string word(key.str());
    const toml::array* const all = node.as_array();
    if (all == nullptr || !node.is_array_of_tables())
      return complain(word, key.source(),
                      "[" + word + "]: write [[" + word + "]], once for each " + word);
    for (std::size_t i = 0; i < all->size(); ++i) {
      const toml::table& content = *all->get(i)->as_table();
      if (content.empty())
        complain(word, content.source(),
                 "[[" + word + "]]: table " + std::to_string(i + 1) +
                     " of them is empty; name at least its name");
      read_table(word, content, i);
    }
  }

  void read_table(const std::string& table, const toml::table& content,
                  std::optional<std::size_t> element = {}) {
    for (auto&& [key, node] : content) {
      const std::string name = table + "." + std::string(key.str());
      const option* const entry = find_option(known_, table, key.str());
      if (entry == nullptr) {
        complain(table, key.source(), name + unknown_key(known_, table, key.str()));
        continue;
      }
      auto value = value_of(*entry, node, environment_);
      if (value) {
        settings_.emplace(
            position_of(node.source()),
            setting{entry, std::move(*value), place_of(name_, node.source()), element});
      } else {
        complain(table, value.error().at->source(), name + ": " + value.error().why);
      }
    }
  }

  std::string name_;
  const std::vector<option>& known_;
  const variables& environment_;
  std::multimap<position, setting> settings_;
  std::multimap<position, complaint> complaints_;
};

constexpr std::size_t most_bytes = std::size_t{16} << 20;
constexpr int most_parts = 256;  // the parser recurses over the parts of a dotted name

/// Whether opening a file waits for somebody who writes into it.
bool is_named_pipe(const std::filesystem::path& file) {
  struct stat found {};
  const auto text = file.string();
  const bool is_ours = text.starts_with("/dev/fd/") || text.starts_with("/proc/self/fd/") ||
                       text == "/dev/stdin";  // from the shell, which writes into it
  return !is_ours && ::stat(file.c_str(), &found) == 0 && S_ISFIFO(found.st_mode);
}

/// The first line with a dotted name of more parts than that, from 1; 0: none.
int line_of_deep_name(std::string_view text) {
  int line = 1;
  int parts = 1;
  char quote = 0;
  for (const char each : text) {
    if (each == '\n') {
      ++line;
      quote = 0;
    }
    if (each == '\n' || each == '=' || each == ',') parts = 1;
    if (each == '"' || each == '\'') quote = quote == 0 ? each : quote == each ? 0 : quote;
    if (each == '.' && quote == 0 && ++parts > most_parts) return line;
  }
  return 0;
}

result<std::string> read_text(const std::filesystem::path& file) {
  if (is_named_pipe(file))
    return fail(errc::bad_config,
                file.string() + " is a named pipe; write the settings to a file and give that");
  const auto refuse = [&file] {
    return fail(errc::bad_config, file.string() + " cannot be read: " + std::strerror(errno));
  };
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rb"), close);
  if (!in) return refuse();
  std::string text;
  char chunk[4096];
  while (const std::size_t count = std::fread(chunk, 1, sizeof chunk, in.get())) {
    if (text.append(chunk, count); text.size() > most_bytes)
      return fail(errc::bad_config, file.string() + " has more than " +
                                        std::to_string(most_bytes >> 20) +
                                        " MiB, which no configuration has; see which file it is");
  }
  if (std::ferror(in.get()) != 0) return refuse();
  return text;
}

result<toml::table> parse(std::string_view text, std::string_view name) try {
  if (const int line = line_of_deep_name(text); line > 0)
    return fail(errc::bad_config, std::string(name) + ":" + std::to_string(line) +
                                      ": not valid TOML: a name of more than " +
                                      std::to_string(most_parts) + " dotted parts");
  return toml::parse(text, name);
} catch (const toml::parse_error& wrong) {
  return fail(errc::bad_config,
              place_of(name, wrong.source()) + ": not valid TOML: " + one_line(wrong));
}

settings_layer refused(const error& why) {
  return {{}, {{"", why.text}}};
}

}  // namespace

settings_layer parse_toml(std::string_view text, std::string_view name,
                          const std::vector<option>& known, const variables& environment) {
  const auto root = parse(text, name);
  if (!root) return refused(root.error());
  reader settings(name, known, environment);
  settings.read_file(*root);
  return std::move(settings).finish();
}

settings_layer read_toml(const std::filesystem::path& file, const std::vector<option>& known,
                         const variables& environment) {
  const auto text = read_text(file);
  if (!text) return refused({errc::bad_config, "--config: " + text.error().text});
  return parse_toml(*text, file.string(), known, environment);
}

result<std::optional<placed_text>> read_text_key(const std::filesystem::path& file,
                                                 std::string_view table, std::string_view key,
                                                 const variables& environment) {
  const auto root =
      read_text(file).and_then([&](const std::string& text) { return parse(text, file.string()); });
  if (!root) return tl::unexpected(root.error());
  const auto found = (*root)[table][key];
  if (!found) return std::nullopt;
  const auto place = place_of(file.string(), found.node()->source());
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_config,
                place + ": " + std::string(table) + "." + std::string(key) + ": " + why);
  };
  if (!found.is_string()) return refuse("expected a text, got " + kind_of(*found.node()));
  const auto text = with_variables(found.as_string()->get(), environment);
  if (!text) return refuse(text.error());
  return placed_text{*text, place};
}

}  // namespace troupe::cluster
