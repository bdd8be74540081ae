#include "cluster/config/option.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <system_error>

#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

template <class... Cases>
struct overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
overloaded(Cases...) -> overloaded<Cases...>;  // clang 14 does not deduce it

tl::unexpected<std::string> refuse(std::string why) {
  return tl::unexpected(std::move(why));
}

std::string in_quotes(std::string_view text) {
  return '"' + std::string(text) + '"';
}

std::string text_of(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

// What follows a complaint: "; allowed: 1 to 64", or nothing.
std::string hint(const option& entry) {
  const std::string values = allowed_values(entry);
  return values.empty() ? "" : "; allowed: " + values;
}

std::string describe(const option_value& value) {
  return std::visit(overloaded{
                        [](bool given) -> std::string {
                          return given ? "the boolean true" : "the boolean false";
                        },
                        [](std::int64_t given) { return "the integer " + std::to_string(given); },
                        [](double given) { return "the number " + text_of(given); },
                        [](const std::string& given) { return "the text " + in_quotes(given); },
                        [](const std::vector<std::string>&) -> std::string { return "a list"; },
                    },
                    value);
}

std::string wrong_kind(const option& entry, const std::string& given) {
  return "expected " + std::string(kind_name(entry)) + ", got " + given + hint(entry);
}

template <class Number>
accepted<Number> parse_number(const option& entry, const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (stop != end || text.empty() || status == std::errc::invalid_argument)
    return refuse(in_quotes(text) + " is not " + std::string(kind_name(entry)) + hint(entry));
  if (status == std::errc::result_out_of_range)
    return refuse(text + " is out of range" + hint(entry));
  return value;
}

accepted<bool> parse_switch(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return refuse(in_quotes(text) + " is not a boolean; allowed: true, false");
}

accepted<std::vector<std::string>> split(const std::string& text) {
  std::vector<std::string> words;
  if (text.empty()) return words;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    words.push_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  return words;
}

// A file says its integers as such; a flag and a text with variables are digits.
bool is_short_integer(const std::string& word) {
  return !word.empty() && word.size() <= 6 &&
         std::ranges::all_of(word, [](char each) { return '0' <= each && each <= '9'; });
}

accepted<option_value> check_list(const option& entry, const std::vector<std::string>& words) {
  const auto& field = std::get<list_field>(entry.field);
  if (field.numbers) {
    const auto wrong = std::ranges::find_if_not(words, is_short_integer);
    if (wrong != words.end())
      return refuse("expected " + std::string(kind_name(entry)) + ", got " + in_quotes(*wrong) +
                    " in it; allowed: 0 to 999999");
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) return refuse("name " + std::to_string(i + 1) + " of the list is empty");
    for (std::size_t j = 0; j < i && !field.repeats; ++j)
      if (words[i] == words[j]) return refuse(in_quotes(words[i]) + " stands in the list twice");
  }
  return words;
}

accepted<option_value> check_integer(const option& entry, const integer_field& field,
                                     std::int64_t value) {
  if (value == 0 && !field.zero_word.empty()) return value;
  if (value < field.least || value > field.most)
    return refuse(std::to_string(value) + " is out of range" + hint(entry));
  return value;
}

accepted<option_value> check_number(const option& entry, const number_field& field, double value) {
  if (!std::isfinite(value))
    return refuse(text_of(value) + " is not a finite number" + hint(entry));
  if (value < field.least || value > field.most || (field.above_least && value == field.least))
    return refuse(text_of(value) + " is out of range" + hint(entry));
  return value;
}

accepted<option_value> check_text(const text_field& field, const std::string& value) {
  if (value.find('\0') != std::string::npos) return refuse("text must not contain a NUL character");
  if (field.allowed.empty()) return value;
  for (const std::string& word : field.allowed)
    if (value == word) return value;
  return refuse(unknown_value(value, {field.allowed.begin(), field.allowed.end()}));
}

/// Stores a checked value; a rival loses its own.
void assign(const option& entry, const option_value& checked, trainer_config& config) {
  std::visit(
      overloaded{
          [&](const switch_field& field) { field.set(config, std::get<bool>(checked)); },
          [&](const integer_field& field) { field.set(config, std::get<std::int64_t>(checked)); },
          [&](const number_field& field) { field.set(config, std::get<double>(checked)); },
          [&](const text_field& field) { field.set(config, std::get<std::string>(checked)); },
          [&](const list_field& field) {
            field.set(config, std::get<std::vector<std::string>>(checked));
          },
      },
      entry.field);
}

/// Stores a value of a repeated table; its fields set the last element, so that one trades places
/// with it meanwhile.
void assign_to_element(const setting& given, std::vector<node_entry>& elements,
                       trainer_config& config) {
  if (elements.size() <= *given.element) elements.resize(*given.element + 1);
  std::swap(elements[*given.element], elements.back());
  assign(*given.entry, given.value, config);
  std::swap(elements[*given.element], elements.back());
}

}  // namespace

std::string option::name() const {
  return table + "." + key;
}

accepted<option_value> parse_value(const option& entry, const std::string& text) {
  const auto check = [&entry](const auto& value) {
    return check_value(entry, option_value(value));
  };
  return std::visit(overloaded{
                        [&](const switch_field&) { return parse_switch(text).and_then(check); },
                        [&](const integer_field& field) {
                          if (!field.zero_word.empty() && text == field.zero_word)
                            return check(std::int64_t{0});
                          return parse_number<std::int64_t>(entry, text).and_then(check);
                        },
                        [&](const number_field& field) {
                          if (!field.zero_word.empty() && text == field.zero_word)
                            return accepted<option_value>(0.0);
                          return parse_number<double>(entry, text).and_then(check);
                        },
                        [&](const text_field&) { return check(text); },
                        [&](const list_field&) { return split(text).and_then(check); },
                    },
                    entry.field);
}

accepted<option_value> check_value(const option& entry, const option_value& given) {
  const auto wrong = [&] { return refuse(wrong_kind(entry, describe(given))); };
  return std::visit(
      overloaded{
          [&](const switch_field&, bool value) { return accepted<option_value>(value); },
          [&](const integer_field& field, std::int64_t value) {
            return check_integer(entry, field, value);
          },
          [&](const integer_field& field, const std::string& value) {
            if (!field.zero_word.empty() && value == field.zero_word)
              return accepted<option_value>(std::int64_t{0});
            return accepted<option_value>(wrong());
          },
          [&](const number_field& field, std::int64_t value) {
            return check_number(entry, field, static_cast<double>(value));
          },
          [&](const number_field& field, double value) {
            return check_number(entry, field, value);
          },
          [&](const number_field& field, const std::string& value) {
            if (!field.zero_word.empty() && value == field.zero_word)
              return accepted<option_value>(0.0);
            return accepted<option_value>(wrong());
          },
          [&](const text_field& field, const std::string& value) {
            return check_text(field, value);
          },
          [&](const list_field&, const std::string& value) {
            return split(value).and_then(
                [&](const auto& words) { return check_list(entry, words); });
          },
          [&](const list_field&, const std::vector<std::string>& value) {
            return check_list(entry, value);
          },
          [&](const auto&, const auto&) { return accepted<option_value>(wrong()); },
      },
      entry.field, given);
}

std::string_view kind_name(const option& entry) {
  return std::visit(overloaded{
                        [](const switch_field&) { return "a boolean"; },
                        [](const integer_field&) { return "an integer"; },
                        [](const number_field&) { return "a number"; },
                        [](const text_field&) { return "a text"; },
                        [](const list_field& field) {
                          return field.numbers ? "a list of integers" : "a list of texts";
                        },
                    },
                    entry.field);
}

std::string allowed_values(const option& entry) {
  return std::visit(
      overloaded{
          [](const switch_field&) -> std::string { return "true, false"; },
          [](const integer_field& field) {
            const bool open = field.most == std::numeric_limits<std::int64_t>::max();
            const std::string least = std::to_string(field.least);
            const std::string word = field.zero_word.empty() ? "" : field.zero_word + ", ";
            return word + (open ? least + " or more" : least + " to " + std::to_string(field.most));
          },
          [](const number_field& field) {
            if (field.above_least) return "above " + text_of(field.least);
            const std::string least =
                (field.zero_word.empty() ? "" : field.zero_word + ", ") + text_of(field.least);
            return std::isinf(field.most) ? least + " or more"
                                          : least + " to " + text_of(field.most);
          },
          [](const text_field& field) {
            return join({field.allowed.begin(), field.allowed.end()});
          },
          [](const list_field&) -> std::string { return ""; },
      },
      entry.field);
}

std::string default_text(const option& entry, const trainer_config& config) {
  return std::visit(overloaded{
                        [&](const switch_field& field) -> std::string {
                          const auto value = field.get(config);
                          return !value ? "" : *value ? "true" : "false";
                        },
                        [&](const integer_field& field) {
                          const auto value = field.get(config);
                          return value ? std::to_string(*value) : "";
                        },
                        [&](const number_field& field) {
                          const auto value = field.get(config);
                          return value ? text_of(*value) : "";
                        },
                        [&](const text_field& field) { return field.get(config); },
                        [&](const list_field& field) {
                          const std::vector<std::string> words = field.get(config);
                          return join({words.begin(), words.end()});
                        },
                    },
                    entry.field);
}

namespace {

/// As a user would write it.
std::string text_of_value(const option& entry, const trainer_config& config) {
  auto text = default_text(entry, config);
  const auto word = std::visit(
      [](const auto& field) -> std::string {
        if constexpr (requires { field.zero_word; }) return field.zero_word;
        return "";
      },
      entry.field);
  return text == "0" && !word.empty() ? word : text;
}

}  // namespace

std::map<std::string, std::string> changed_values(const std::vector<option>& options,
                                                  const trainer_config& config,
                                                  const trainer_config& defaults) {
  std::map<std::string, std::string> changed;
  for (const auto& entry : options) {
    if (entry.repeated || entry.table == "cluster" || entry.table == "link") continue;
    auto value = text_of_value(entry, config);
    if (value.empty() && !entry.rival.empty()) continue;  // the other one is set
    // Each optimizer has its own default of a rule's option.
    const bool is_of_rule =
        entry.table == "optimizer" && config.optimizer.options.contains(entry.key);
    if (is_of_rule || value != text_of_value(entry, defaults))
      changed.emplace(entry.name(), std::move(value));
  }
  return changed;
}

result<void> check_unique(const std::vector<option>& options) {
  std::set<std::string> names;
  std::set<std::string> flags{"--config",  "--set",  "--config-reference", "--help",
                              "--version", "--join", "--node-name"};
  for (const option& entry : options) {
    if (!names.insert(entry.name()).second)
      return fail(errc::bad_config, "the program has two options called " + entry.name());
    for (const std::string& flag : {entry.flag, entry.off_flag})
      if (!flag.empty() && !flags.insert(flag).second)
        return fail(errc::bad_config, "the program has two options with the flag " + flag +
                                          "; of " + entry.name() + " it needs another one");
  }
  return {};
}

std::string setting::where() const {
  if (origin == setting_origin::flag) return entry->flag;
  return origin == setting_origin::set ? "--set " + path() : place + ": " + entry->name();
}

std::string setting::path() const {
  if (!element) return entry->name();
  return entry->table + "[" + std::to_string(*element) + "]." + entry->key;
}

const setting* draft::find(const std::string& name) const {
  const auto found = given.find(name);
  return found == given.end() ? nullptr : &found->second;
}

std::string draft::where(const std::string& name) const {
  const setting* const found = find(name);
  return found == nullptr ? name : found->where();
}

result<void> draft::apply(const std::vector<setting>& layer) {
  std::map<std::string, const setting*> seen;
  const bool has_nodes = std::ranges::any_of(layer, [](const setting& each) {
    return each.element && each.origin == setting_origin::file;
  });
  if (has_nodes) {
    config.cluster.nodes.clear();
    std::erase_if(given, [](const auto& each) { return each.second.element.has_value(); });
  }
  for (const setting& above : layer) {
    if (const auto rival = seen.find(above.entry->rival); rival != seen.end()) {
      return fail(errc::bad_config, above.where() + ": given together with " +
                                        rival->second->where() + "; give one of them");
    }
    if (above.element) {
      assign_to_element(above, config.cluster.nodes, config);
    } else {
      assign(*above.entry, above.value, config);
    }
    given.erase(above.entry->rival);
    given.insert_or_assign(above.path(), above);
    seen.emplace(above.path(), &above);
  }
  return {};
}

std::string blame(const draft& whole, const std::string& first, const std::string& second) {
  const setting* a = whole.find(first);
  const setting* b = whole.find(second);
  const bool b_is_nearer = b != nullptr && (a == nullptr || b->origin > a->origin);
  return whole.where(b_is_nearer ? second : first) + ": ";
}

tl::unexpected<error> fail_at(const draft& whole, const std::string& name, const std::string& why) {
  return fail(errc::bad_config, whole.where(name) + ": " + why);
}

tl::unexpected<error> fail_at(const draft& whole, const std::string& first,
                              const std::string& second, const std::string& why) {
  return fail(errc::bad_config, blame(whole, first, second) + why);
}

std::string source(const draft& whole, const std::string& name, const std::string& value) {
  const setting* found = whole.find(name);
  if (found == nullptr) return " (" + name + " = " + value + " by default)";
  if (found->origin == setting_origin::flag) return " (" + found->entry->flag + " " + value + ")";
  if (found->origin == setting_origin::set) return " (--set " + name + "=" + value + ")";
  return " (" + name + " = " + value + " in " + found->place + ")";
}

std::string source(const draft& whole, const std::string& name, std::uint64_t value) {
  return source(whole, name, std::to_string(value));
}

}  // namespace troupe::cluster
