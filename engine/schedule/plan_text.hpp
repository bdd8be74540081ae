#pragma once

#include <string>
#include <string_view>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// "F3" or "B0".
[[nodiscard]] std::string to_string(const action& what);

/// A plan for people and files; `parse` reads it back:
///
///     schedule 1f1b microbatches 2
///     stage 0 cap 2: F0 F1 B0 B1
///     stage 1 cap 1: F0 B0 F1 B1
[[nodiscard]] std::string to_text(const plan& steps);

/// Reads `to_text`'s form; blank lines and what follows a '#' are skipped. Only the form is judged
/// here: `check` judges the plan. Errors: bad_config with line, column, what was expected and
/// found.
[[nodiscard]] result<plan> parse(std::string_view text);

}  // namespace troupe::engine
