#pragma once

#include <string>

#include "cluster/training/application.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a run would do, without doing it: a line for each stage with its layers, its node, where
/// that is, its threads and its predicted memory (see predicted_memory), and one for the trainer.
/// Opens the data and describes the model as a run does, and runs each layer forward once. Errors:
/// those of preparing a run.
[[nodiscard]] result<std::string> placement_table(const application& program,
                                                  const trainer_config& config);

}  // namespace troupe::cluster
