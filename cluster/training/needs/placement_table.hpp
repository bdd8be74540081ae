#pragma once

#include "cluster/training/application.hpp"
#include "cluster/training/checked_run.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a run would do, without doing it: a line for each stage with its layers, its node, where
/// that is, its threads and its predicted memory (see predicted_memory), and one for the trainer.
/// Opens the data and describes the model as a run does, and runs each layer forward once. Where a
/// node is to read the data and this machine lacks them, checks and shows what takes none, and says
/// what is left out. Refused:
/// stages that run on this machine and are predicted to need more memory together than is free
/// here. Errors: those of preparing a run.
[[nodiscard]] result<checked_run> placement_table(const application& program,
                                                  const trainer_config& config);

}  // namespace troupe::cluster
