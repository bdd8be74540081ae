#include "optimizers/options.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>

namespace troupe::optimizers {
namespace {

tl::unexpected<error> unknown(const std::string& optimizer, const std::string& option,
                              const options& known) {
  return fail(errc::bad_config, "optimizer '" + optimizer + "' has no option '" + option +
                                    "'; its options: " + c10::Join(", ", std::views::keys(known)));
}

tl::unexpected<error> out_of_range(const std::string& optimizer, const option_rule& rule,
                                   const std::string& value) {
  return fail(errc::bad_config, "optimizer '" + optimizer + "': " + std::string(rule.name) + " = " +
                                    value + " is out of range: " + range_of(rule));
}

// Written so that a NaN is in no range.
bool fits(const option_rule& rule, double value) {
  if (rule.is_flag) return value == 0 || value == 1;
  for (std::size_t i = 0; i < rule.words.size(); ++i)
    if (value == static_cast<double>(i)) return true;
  if (!rule.words.empty()) return false;
  const bool above = rule.above_least ? value > rule.least : value >= rule.least;
  return above && (rule.below_most ? value < rule.most : value <= rule.most);
}

}  // namespace

std::string to_text(double value) {
  std::array<char, 32> digits{};
  const auto [end, code] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), code == std::errc() ? end : digits.data()};
}

std::string range_of(const option_rule& rule) {
  if (rule.is_flag) return "0 or 1";
  if (!rule.words.empty()) return c10::Join(" or ", rule.words);
  const bool below = rule.least <= -largest_option, above = rule.most >= largest_option;
  if (below && above) return "any finite f32";
  return std::string(rule.above_least ? "above " : "from ") + to_text(rule.least) +
         (above             ? " upwards, finite as f32"
          : rule.below_most ? " to below " + to_text(rule.most)
                            : " to " + to_text(rule.most));
}

options defaults_of(std::span<const option_rule> rules) {
  options values;
  for (const auto& rule : rules) values[std::string(rule.name)] = rule.fallback;
  return values;
}

result<void> check_options(const std::string& optimizer, std::span<const option_rule> rules,
                           const options& given) {
  for (const auto& rule : rules) {
    const auto found = given.find(std::string(rule.name));
    if (found == given.end())
      return fail(errc::bad_config, "optimizer '" + optimizer + "': option '" +
                                        std::string(rule.name) +
                                        "' is missing; complete() fills in the defaults");
    if (!fits(rule, found->second)) return out_of_range(optimizer, rule, to_text(found->second));
  }
  if (given.size() == rules.size()) return {};
  const options known = defaults_of(rules);
  const auto extra = std::ranges::find_if(
      given, [&known](const auto& entry) { return !known.contains(entry.first); });
  return unknown(optimizer, extra->first, known);
}

result<void> check_option(const optimizer& entry, const std::string& option, double value) {
  if (!entry.defaults.contains(option)) return unknown(entry.name, option, entry.defaults);
  const auto rule = std::ranges::find(entry.rules, option, &option_rule::name);
  if (rule == entry.rules.end() || fits(*rule, value)) return {};
  return out_of_range(entry.name, *rule, to_text(value));
}

result<double> parse_option(const optimizer& entry, const std::string& option,
                            const std::string& text) {
  const auto rule = std::ranges::find(entry.rules, option, &option_rule::name);
  if (rule == entry.rules.end() && !entry.defaults.contains(option))
    return unknown(entry.name, option, entry.defaults);
  const option_rule& of = rule == entry.rules.end() ? option_rule{.name = option} : *rule;
  if (const auto word = std::ranges::find(of.words, text); word != of.words.end())
    return static_cast<double>(word - of.words.begin());
  if (of.is_flag && (text == "true" || text == "false")) return text == "true" ? 1.0 : 0.0;
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = code == std::errc() && end == text.data() + text.size() && !text.empty();
  if (!whole || (rule != entry.rules.end() && !fits(of, value)))
    return out_of_range(entry.name, of, text);
  return value;
}

result<options> complete(const optimizer& entry, const options& given) {
  options values = entry.defaults;
  for (const auto& [name, value] : given) {
    if (!values.contains(name)) return unknown(entry.name, name, entry.defaults);
    values[name] = value;
  }
  if (!entry.check) return values;
  if (auto good = entry.check(values); !good) return tl::unexpected(good.error());
  return values;
}

}  // namespace troupe::optimizers
