#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "messages/base/error.hpp"

/// What a pipeline's run says at its end: for its own sources alone.
namespace troupe::cluster {

/// Ends the report, and logs what is known of the whole run, however it has ended.
void tell_end(pipeline_run& parts);

/// The same of a run that has done all its steps, or was interrupted; of one that has done them,
/// also what the program shows. Errors: those of the program's functions, but for the loss of a
/// stage, of which is warned.
[[nodiscard]] result<void> end_complete(pipeline_run& parts, actors::pipeline& stages);

}  // namespace troupe::cluster
