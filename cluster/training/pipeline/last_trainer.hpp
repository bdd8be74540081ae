#pragma once

#include <cstdint>
#include <optional>

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "cluster/training/pipeline/start_point.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Tells the process that outlives this trainer, if there is one, what another trainer has to know
/// to go on behind a step that is done, where that has completed an update: behind others there is
/// no version. Does not wait. Used by the run's thread.
void note_step(pipeline_run& parts, actors::pipeline& stages, std::uint64_t step);

/// Where the trainer before this one was when it was lost, if the process that has outlived it has
/// a version of every stage there, and the model is cut as it was; that counts as told then.
/// Nothing: the run begins where it would without it, and that process has forgotten what it had.
/// Errors: those of the nodes.
[[nodiscard]] result<std::optional<start_point>> left_by_last_trainer(pipeline_run& parts);

}  // namespace troupe::cluster
