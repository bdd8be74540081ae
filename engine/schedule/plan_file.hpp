#pragma once

#include <filesystem>

#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Reads and checks the plan of a training step from a file in `to_text`'s form. Errors: io_failed;
/// bad_config with file, line, column, action and the rule it breaks.
[[nodiscard]] result<plan> read_plan(const std::filesystem::path& file);

}  // namespace troupe::engine
