#pragma once

#include <optional>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What `--check` shows for a run whose settings are valid.
struct checked_run {
  std::string table;
  std::optional<error> refused = {};  ///< Why it cannot run nevertheless; none: it can.
};

}  // namespace troupe::cluster
