#pragma once

#include "apps/exit_codes.hpp"
#include "apps/training/application.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// Trains as the config says: opens the data, cuts the model, starts the workers, and drives them
/// until all steps are done or the user interrupts; or only profiles the model, where the config
/// says so. Leaves no process behind, whatever happens.
[[nodiscard]] result<run_end> run_trainer(const application& program,
                                          const cluster::trainer_config& config);

/// Serves as a worker of another process's run.
[[nodiscard]] result<void> run_worker(const application& program,
                                      const cluster::node_options& options);

}  // namespace troupe::apps
