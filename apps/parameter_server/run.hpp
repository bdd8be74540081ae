#pragma once

#include "apps/exit_codes.hpp"
#include "cluster/config/command_line.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// Trains as the config says: opens the data, spreads the model's parameters over shard processes,
/// has worker processes compute gradients, until all steps are done or the user interrupts. A
/// worker that is lost is left out; a lost shard ends the run. Leaves no process behind.
[[nodiscard]] result<run_end> run_server_trainer(const cluster::trainer_config& config);

/// Serves as a shard or worker of another process's run.
[[nodiscard]] result<void> run_server_node(const cluster::node_options& options);

}  // namespace troupe::apps
