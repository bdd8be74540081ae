#pragma once

#include <span>
#include <string>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// "0.1", as short as the value allows.
[[nodiscard]] std::string to_text(double value);

/// "from 0 to 1", "0 or 1", "grad or direct": what values of an option are allowed.
[[nodiscard]] std::string range_of(const option_rule& rule);

/// Every option with its default.
[[nodiscard]] options defaults_of(std::span<const option_rule> rules);

/// Whether `given` has each of the rules' options, in its range, and no other. `optimizer` is the
/// name for the error's text. Errors: bad_config.
[[nodiscard]] result<void> check_options(const std::string& optimizer,
                                         std::span<const option_rule> rules, const options& given);

/// Whether the optimizer has the option and the value is in its range, whatever the other options
/// are. Errors: bad_config.
[[nodiscard]] result<void> check_option(const optimizer& entry, const std::string& option,
                                        double value);

/// The value that `text` stands for: a number, a word of the option, or true and false where it is
/// a flag. Errors: bad_config naming option, text and range, or the known options.
[[nodiscard]] result<double> parse_option(const optimizer& entry, const std::string& option,
                                          const std::string& text);

}  // namespace troupe::optimizers
