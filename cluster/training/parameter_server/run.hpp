#pragma once

#include "cluster/config/sources/command_line.hpp"
#include "cluster/training/parameter_server/application.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Trains as the config says: opens the data, spreads the model's parameters over shard processes
/// and has worker processes compute gradients, until all steps are done or the user interrupts.
/// Continues without a worker that is lost. The loss of a shard or of all workers ends the run, or
/// with --on-fault recover has it continue from its last checkpoint. Leaves no process behind.
[[nodiscard]] result<run_end> run_server_trainer(const server_application& program,
                                                 const trainer_config& config);

/// Serves as a shard or worker of another process's run.
[[nodiscard]] result<void> run_server_node(const server_application& program,
                                           const node_options& options);

}  // namespace troupe::cluster
