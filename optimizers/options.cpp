#include "optimizers/options.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace troupe::optimizers {
namespace {

std::string names_of(const options& values) {
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "" : ", ") + name;
  return names;
}

tl::unexpected<error> unknown(const std::string& optimizer, const std::string& option,
                              const options& known) {
  return fail(errc::bad_config, "optimizer '" + optimizer + "' has no option '" + option +
                                    "'; its options: " + names_of(known));
}

std::string range_of(const option_rule& rule) {
  if (rule.is_flag) return "0 or 1";
  const bool below = rule.least <= -largest_option, above = rule.most >= largest_option;
  if (below && above) return "any finite f32";
  return "from " + to_text(rule.least) +
         (above ? " upwards, finite as f32" : " to " + to_text(rule.most));
}

// Written so that a NaN is in no range.
bool fits(const option_rule& rule, double value) {
  if (rule.is_flag) return value == 0 || value == 1;
  return value >= rule.least && value <= rule.most;
}

}  // namespace

std::string to_text(double value) {
  std::array<char, 32> digits{};
  const auto [end, code] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), code == std::errc() ? end : digits.data()};
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
    if (!fits(rule, found->second))
      return fail(errc::bad_config, "optimizer '" + optimizer + "': " + std::string(rule.name) +
                                        " = " + to_text(found->second) +
                                        " is out of range: " + range_of(rule));
  }
  if (given.size() == rules.size()) return {};
  const options known = defaults_of(rules);
  const auto extra =
      std::ranges::find_if(given, [&](const auto& entry) { return !known.contains(entry.first); });
  return unknown(optimizer, extra->first, known);
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
