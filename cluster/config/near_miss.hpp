#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cluster {

/// The candidate that `word` was probably meant to be: few edits away (Damerau-Levenshtein, optimal
/// string alignment), or the only one that begins with it. Case does not count.
[[nodiscard]] std::optional<std::string_view> nearest(
    std::string_view word, const std::vector<std::string_view>& candidates);

/// "a, b, c"
[[nodiscard]] std::string join(const std::vector<std::string_view>& words);

}  // namespace troupe::cluster
