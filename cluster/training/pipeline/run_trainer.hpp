#pragma once

#include <memory>

#include "actors/recovery/kept_stages.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Trains as the config says: opens the data, cuts the model, starts the nodes, and drives them
/// until all steps are done or the user interrupts; or only profiles the model, where the config
/// says so. Leaves no process behind, whatever happens.
[[nodiscard]] result<run_end> run_trainer(const application& program, const trainer_config& config);

/// Serves as a stage process of another process's run.
[[nodiscard]] result<void> run_stage_process(const application& program,
                                             const node_options& options);

/// Serves as the process that outlives the trainer, for one trainer. `kept`: see kept_stages.
[[nodiscard]] result<void> run_keeper_process(const application& program,
                                              const node_options& options,
                                              const std::shared_ptr<actors::kept_stages>& kept);

}  // namespace troupe::cluster
