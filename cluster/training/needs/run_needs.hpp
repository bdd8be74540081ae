#pragma once

#include "cluster/doctor/doctor.hpp"
#include "cluster/training/application.hpp"

namespace troupe::cluster {

/// What a run takes: of each stage weights, gradients and the optimizer's state, without
/// activations; and what is saved. Opens the data and cuts the model as a run does, without memory
/// for weights. Errors: those of preparing a run.
[[nodiscard]] result<doctor::run_needs> needs_of_run(const application& program,
                                                     const trainer_config& config);

}  // namespace troupe::cluster
