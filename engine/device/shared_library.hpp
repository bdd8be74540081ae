#pragma once

#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// Loads a shared library, never to be unloaded: by its path, or by the name that the system's
/// loader searches for. `globally`: later libraries may use its symbols. A file of which the end is
/// missing (an installation that was interrupted, a disk that was full) is refused: to map it would
/// end the process. Errors: transport_missing, with the loader's words.
[[nodiscard]] result<void*> load_library(const std::string& name, bool globally = false);

}  // namespace troupe::engine
