#pragma once

#include <string_view>

#include "messages/base/error.hpp"

namespace troupe {

/// Writes what a command was asked for to standard output, with all that was printed there before,
/// and makes sure that it is there. Errors: io_failed, where a full disk or a closed pipe takes
/// less than all of it.
[[nodiscard]] result<void> write_answer(std::string_view text);

}  // namespace troupe
