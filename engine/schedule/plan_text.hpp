#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// "F3", "I0" or "B12"; of a stage with several chunks "1F3": the chunk first.
[[nodiscard]] std::string to_string(const action& what, std::uint32_t chunks = 1);

/// A plan for people and files; `parse` reads it back:
///
///     schedule 1f1b microbatches 2
///     stage 0 cap 2: F0 F1 B0 B1
///     stage 1 cap 1: F0 B0 F1 B1
///
/// With several chunks a stage the first line says how they lie, and each action which it is of:
///
///     schedule zb-v microbatches 1 chunks 2 v-shaped
///     stage 0 cap 2: 0F0 1F0 1I0 1W0 0I0 0W0
[[nodiscard]] std::string to_text(const plan& steps);

/// Reads `to_text`'s form; blank lines and what follows a '#' are skipped. Checks the form alone:
/// `check` checks the plan. Errors: bad_config with line, column, what was expected and found.
[[nodiscard]] result<plan> parse(std::string_view text);

/// Reads the plan of a training step that somebody wrote, and checks it. Errors: as `parse`; or
/// bad_config with line, column, action and the rule it breaks.
[[nodiscard]] result<plan> parse_checked(std::string_view text);

}  // namespace troupe::engine
