#pragma once

#include "cluster/training/application.hpp"
#include "cluster/training/checked_run.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A table of what a run would do, without running it: a line for each stage with its layers, its
/// node and that node's address, its threads and its predicted memory (see predicted_memory), and
/// one for the trainer. Opens the data and describes the model as a run does, and runs each layer
/// forward once. If a node is to read the data and this machine does not have them, checks and
/// shows what needs no data, and says what is left out. Refuses stages on this machine that are
/// predicted to need more memory together than is free. Errors: those of preparing a run.
[[nodiscard]] result<checked_run> placement_table(const application& program,
                                                  const trainer_config& config);

}  // namespace troupe::cluster
