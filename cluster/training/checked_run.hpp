#pragma once

#include <optional>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What `--check` shows of a run whose settings are in order.
struct checked_run {
  std::string table;
  std::optional<error> refused = {};  ///< Why it cannot run all the same; none: it can.
};

}  // namespace troupe::cluster
