#pragma once

#include "cluster/membership/node_group.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/node_run.hpp"
#include "cluster/training/prepared_run.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Builds the stages on their nodes and trains with them until all steps are done or the user
/// interrupts; where the config says so, also after stages were lost. The run's beginning may still
/// change: hosts may have a newer checkpoint, or all of it. Errors: those of the nodes and of what
/// the stages answer.
[[nodiscard]] result<void> drive(node_group& group, const application& program,
                                 const trainer_config& config, prepared_run& run,
                                 run_control& control);

}  // namespace troupe::cluster
