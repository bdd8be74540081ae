#pragma once

#include <string>

#include "cluster/training/application.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a run would do, without doing it: a line for each stage with its layers, its node, where
/// that is, and its threads. Opens the data and builds the model as a run does. Errors: those of
/// preparing a run.
[[nodiscard]] result<std::string> placement_table(const application& program,
                                                  const trainer_config& config);

}  // namespace troupe::cluster
