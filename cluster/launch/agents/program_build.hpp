#pragma once

#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What tells this program's file from any other: digits that follow from its bytes. Reads it once
/// a process. Errors: io_failed.
[[nodiscard]] result<std::string> program_build();

}  // namespace troupe::cluster
