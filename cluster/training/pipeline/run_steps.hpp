#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "messages/base/error.hpp"

/// For a pipeline's run alone.
namespace troupe::cluster {

/// Drives the composed stages through the steps and evaluations of the run, from `from` on: reports
/// them, writes checkpoints, and saves the weights before the last evaluation. Errors: those of
/// the stages and the data; io_failed; what on_loss returns.
[[nodiscard]] result<void> train_steps(pipeline_run& parts, actors::pipeline& stages,
                                       const start_point& from);

}  // namespace troupe::cluster
