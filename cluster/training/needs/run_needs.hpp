#pragma once

#include "cluster/doctor/doctor.hpp"
#include "cluster/training/application.hpp"

namespace troupe::cluster {

/// What a run takes: of each stage weights, gradients and the optimizer's state, and as far as
/// predict_memory can say it the peak with activations; and what is saved. Opens the data and cuts
/// the model as a run does, and runs each layer once, one at a time. Errors: those of preparing a
/// run, of placing its stages by memory, and bad_config where stages of this machine cannot be
/// measured in its memory.
[[nodiscard]] result<doctor::run_needs> needs_of_run(const application& program,
                                                     const trainer_config& config);

/// How its data are opened, for whoever is to read them.
[[nodiscard]] doctor::requests::data data_to_examine(const application& program,
                                                     const trainer_config& config);

}  // namespace troupe::cluster
