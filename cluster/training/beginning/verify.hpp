#pragma once

#include <functional>
#include <string>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/prepared_run.hpp"

namespace troupe::cluster {

/// Runs the first step's batch both ways, in the pipeline without an update and in this process
/// with plain autograd on a model built here, and prints how each gradient, each buffer and the
/// loss compare. Also checks that the stages begin with the weights that this process expects, and
/// that they have the same afterwards. Errors: handler_failed when anything differs by more than
/// the config's tolerance; what a stage answered; bad_data.
[[nodiscard]] result<void> verify(
    actors::pipeline& stages, const planned_run& of,
    const std::function<void(const std::vector<std::string>&)>& print);

}  // namespace troupe::cluster
