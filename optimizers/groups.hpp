#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// Options for the parameters whose names match.
struct group_rule {
  std::string text;                   ///< As given, for errors.
  std::vector<std::string> patterns;  ///< * stands for any text, ? for one character.
  options changed;
  double lr_scale = 1;  ///< Factor of the step's learning rate.
};

/// Reads "PATTERN[|PATTERN..] OPTION=VALUE ..", as in "*.bias|*bn* weight_decay=0 lr_scale=0.1".
/// Errors: bad_config naming the rule and an option that the optimizer lacks, or its value and
/// range; `lr` is refused, since a schedule changes it.
[[nodiscard]] result<group_rule> parse_group(const optimizer& entry, const std::string& text);

/// Whether the rule applies to a parameter of this name.
[[nodiscard]] bool matches(const group_rule& rule, const std::string& name);

/// Parameters that share their options.
struct param_group {
  options chosen;
  double lr_scale = 1;
  std::vector<std::size_t> members;  ///< Indices, in ascending order.
};

/// Each parameter belongs to the first rule that matches its name, or to a group with `base`.
/// Errors: bad_config when a group's options do not fit together, naming its rule.
[[nodiscard]] result<std::vector<param_group>> make_groups(const optimizer& entry,
                                                           const options& base,
                                                           const std::vector<group_rule>& rules,
                                                           const std::vector<std::string>& names);
/// The same of rules as they were given. Errors: those of parse_group too.
[[nodiscard]] result<std::vector<param_group>> make_groups(const optimizer& entry,
                                                           const options& base,
                                                           const std::vector<std::string>& rules,
                                                           const std::vector<std::string>& names);

/// `entry.step` for each group, with its options and `learning_rate` times its scale (if the
/// optimizer has an lr). Errors: as entry.step; counts, shapes, dtypes and devices are checked
/// before any group has changed. An error names a parameter by its index in `params` and its name,
/// if there are `names`; if the arithmetic threw, by its index in its group.
[[nodiscard]] result<void> step_groups(const optimizer& entry,
                                       const std::vector<param_group>& groups,
                                       std::vector<at::Tensor>& params,
                                       const gradient_list& gradients, state& kept,
                                       double learning_rate, std::uint64_t step,
                                       const std::vector<std::string>& names = {});

}  // namespace troupe::optimizers
