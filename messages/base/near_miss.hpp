#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The candidate that `word` was probably meant to be: few edits away (Damerau-Levenshtein, optimal
/// string alignment), the only one that begins with it, or the longest that it begins with ("auto"
/// for "automatic"). Case does not count.
[[nodiscard]] std::optional<std::string_view> nearest(
    std::string_view word, const std::vector<std::string_view>& candidates);

/// `unknown value "adamx"; did you mean "adam"?; allowed: adam, adamw`
[[nodiscard]] std::string unknown_value(std::string_view value,
                                        const std::vector<std::string_view>& allowed);

/// "a, b, c"
[[nodiscard]] std::string join(const std::vector<std::string_view>& words);

/// "1 stage", "2 stages"
template <class Number>
[[nodiscard]] std::string counted(Number count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// "a", "a and b", "a, b and c"
[[nodiscard]] std::string joined_with_and(const std::vector<std::string>& words);

}  // namespace troupe
