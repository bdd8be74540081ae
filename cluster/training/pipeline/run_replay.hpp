#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "messages/base/error.hpp"

/// What a pipeline's run does where stages are lost and the others can go on: for its own sources
/// alone.
namespace troupe::cluster {

/// Has another process read the data where the one that did has lost its place, and returns whether
/// that is so. Errors: those of data_on_node::open_again.
[[nodiscard]] result<bool> read_data_again(pipeline_run& parts);

/// A stage was lost, or its arithmetic has thrown: then it is lost, unless it did so before.
/// Errors: peer_lost, where all stages have to go back; handler_failed, where the data are gone or
/// others; cancelled, where the user has stopped the run; `why`.
[[nodiscard]] result<void> on_loss(pipeline_run& parts, actors::pipeline& stages, const error& why);

}  // namespace troupe::cluster
