#include "optimizers/groups.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include "optimizers/arguments.hpp"
#include "optimizers/options.hpp"

namespace troupe::optimizers {
namespace {

bool fits(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return fits(pattern.substr(1), name) || (!name.empty() && fits(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         fits(pattern.substr(1), name.substr(1));
}

tl::unexpected<error> refuse(const std::string& rule, const std::string& why) {
  return fail(errc::bad_config, "parameter group '" + rule + "': " + why);
}

/// "nu=0.5" into the rule.
result<void> read_setting(const optimizer& entry, group_rule& rule, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) return refuse(rule.text, "'" + word + "' is not OPTION=VALUE");
  const std::string name = word.substr(0, equals), text = word.substr(equals + 1);
  if (name == "lr")
    return refuse(rule.text, "lr moves with the schedule: give lr_scale, a share of it");
  if (name == "lr_scale") {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), rule.lr_scale);
    if (code == std::errc() && end == text.data() + text.size() && std::isfinite(rule.lr_scale) &&
        rule.lr_scale >= 0)
      return {};
    return refuse(rule.text, "lr_scale = " + text + " is out of range: from 0 upwards");
  }
  const auto value = parse_option(entry, name, text);
  if (!value) return refuse(rule.text, value.error().text);
  rule.changed[name] = *value;
  return {};
}

template <class T>
std::vector<T> picked(const std::vector<T>& from, const std::vector<std::size_t>& members) {
  std::vector<T> made;
  made.reserve(members.size());
  for (const std::size_t index : members) made.push_back(from[index]);
  return made;
}

result<void> step_one(const optimizer& entry, const param_group& group,
                      std::vector<at::Tensor>& params, const gradient_list& gradients, state& kept,
                      const options& chosen, std::uint64_t step) {
  auto some_params = picked(params, group.members);
  state some_kept;
  for (auto& [slot, tensors] : kept) some_kept[slot] = picked(tensors, group.members);
  auto stepped = entry.step(some_params, picked(gradients, group.members), some_kept, chosen, step);
  for (auto& [slot, tensors] : some_kept) {
    auto& all = kept[slot];
    all.resize(params.size());
    for (std::size_t i = 0; i < group.members.size(); ++i)
      all[group.members[i]] = std::move(tensors[i]);
  }
  return stepped;
}

}  // namespace

result<group_rule> parse_group(const optimizer& entry, const std::string& text) {
  group_rule rule{.text = text, .patterns = {}, .changed = {}};
  std::istringstream words(text);
  std::string patterns;
  words >> patterns;
  std::istringstream alternatives(patterns);
  for (std::string pattern; std::getline(alternatives, pattern, '|');)
    if (!pattern.empty()) rule.patterns.push_back(pattern);
  if (rule.patterns.empty() || patterns.find('=') != std::string::npos)
    return refuse(text, "must begin with a pattern for names of parameters, such as *.bias");
  std::string word;
  if (!(words >> word)) return refuse(text, "gives no option, such as weight_decay=0");
  do
    if (auto read = read_setting(entry, rule, word); !read) return tl::unexpected(read.error());
  while (words >> word);
  return rule;
}

bool matches(const group_rule& rule, const std::string& name) {
  return std::ranges::any_of(rule.patterns,
                             [&name](const std::string& pattern) { return fits(pattern, name); });
}

result<std::vector<param_group>> make_groups(const optimizer& entry, const options& base,
                                             const std::vector<group_rule>& rules,
                                             const std::vector<std::string>& names) {
  std::vector<param_group> groups(rules.size() + 1);
  for (std::size_t i = 0; i <= rules.size(); ++i) {
    options given = base;
    if (i < rules.size())
      for (const auto& [option, value] : rules[i].changed) given[option] = value;
    auto chosen = complete(entry, given);
    if (!chosen && i < rules.size()) return refuse(rules[i].text, chosen.error().text);
    if (!chosen) return tl::unexpected(chosen.error());
    groups[i].chosen = std::move(*chosen);
    if (i < rules.size()) groups[i].lr_scale = rules[i].lr_scale;
  }
  for (std::size_t param = 0; param < names.size(); ++param) {
    const auto rule = std::ranges::find_if(
        rules, [&](const group_rule& each) { return matches(each, names[param]); });
    groups[static_cast<std::size_t>(rule - rules.begin())].members.push_back(param);
  }
  std::erase_if(groups, [](const param_group& group) { return group.members.empty(); });
  return groups;
}

result<std::vector<param_group>> make_groups(const optimizer& entry, const options& base,
                                             const std::vector<std::string>& rules,
                                             const std::vector<std::string>& names) {
  std::vector<group_rule> all;
  for (const auto& text : rules) {
    auto rule = parse_group(entry, text);
    if (!rule) return tl::unexpected(rule.error());
    all.push_back(std::move(*rule));
  }
  return make_groups(entry, base, all, names);
}

result<void> step_groups(const optimizer& entry, const std::vector<param_group>& groups,
                         std::vector<at::Tensor>& params, const gradient_list& gradients,
                         state& kept, double learning_rate, std::uint64_t step,
                         const std::vector<std::string>& names) {
  if (auto good = check_gradients(entry.name, params, gradients, names); !good) return good;
  for (const param_group& group : groups) {
    options chosen = group.chosen;
    if (const auto lr = chosen.find("lr"); lr != chosen.end())
      lr->second = learning_rate * group.lr_scale;
    auto stepped = group.members.size() == params.size()
                       ? entry.step(params, gradients, kept, chosen, step)
                       : step_one(entry, group, params, gradients, kept, chosen, step);
    if (!stepped) return stepped;
  }
  return {};
}

}  // namespace troupe::optimizers
