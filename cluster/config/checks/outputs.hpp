#pragma once

#include "cluster/config/option.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Whether each file that the run is to write can be written as far as can be seen now, also those
/// in folders that it makes, and no two of them are one file, nor one of them a file of the
/// settings. Nothing is created. Errors:
/// bad_config, beginning with the setting to change.
[[nodiscard]] result<void> check_outputs(const draft& whole);

}  // namespace troupe::cluster
