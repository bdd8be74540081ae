#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// The largest magnitude an option may have: it must still be finite as an f32.
inline constexpr double largest_option = std::numeric_limits<float>::max();

/// One option of an optimizer: its default and the range of its values, both ends included.
struct option_rule {
  std::string_view name;
  double fallback = 0;
  double least = 0;
  double most = largest_option;
  bool is_flag = false;  ///< Only 0 and 1.
};

/// Every option with its default.
[[nodiscard]] options defaults_of(std::span<const option_rule> rules);

/// Whether `given` has each of the rules' options, in its range, and no other. `optimizer` is the
/// name for the error's text. Errors: bad_config.
[[nodiscard]] result<void> check_options(const std::string& optimizer,
                                         std::span<const option_rule> rules, const options& given);

/// "0.1", as short as the value allows.
[[nodiscard]] std::string to_text(double value);

}  // namespace troupe::optimizers
