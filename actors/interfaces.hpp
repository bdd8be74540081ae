#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "actors/protocol.hpp"

/// Every typed actor of a training run. An error answer carries a troupe::error (see errors.hpp).
namespace troupe::actors {

/// One pipeline stage: a slice of the model and its place in the flow. Lives on any node.
using stage_actor = caf::typed_actor<
    // From whoever composes the pipeline, once, before the first `run`.
    caf::replies_to<connect_stage>::with<done>,
    // From the trainer. The answer comes when the stage's part of the step is over and, in a
    // training step, its update is applied. Several may be outstanding; they run in order. Errors:
    // handler_failed (the arithmetic threw), stale, bad_frame, bad_config (the plan).
    caf::replies_to<run>::with<run_done>,
    // From the previous stage or the feeder, in the order of micro-batches; may come before the
    // `run` of its step.
    caf::reacts_to<activation>,
    // From the feeder, to the last stage.
    caf::reacts_to<target>,
    // From the next stage.
    caf::reacts_to<gradient>,
    // From the neighbour that uses what this stage sent.
    caf::reacts_to<credit>,
    // From the stage's own work thread.
    caf::reacts_to<output_ready>, caf::reacts_to<work_done>, caf::reacts_to<gradients_ready>,
    caf::reacts_to<step_undone>,
    // From a stage with which this one shares a weight, once a training step; may come before this
    // stage's own gradients are there.
    caf::reacts_to<tied_gradient>,
    // From the trainer, between steps. Errors: bad_data naming the tensor; stale where no rehearsal
    // was run.
    caf::replies_to<load_weights>::with<done>, caf::replies_to<read_weights>::with<weights>,
    caf::replies_to<read_rehearsal>::with<rehearsed>>;

/// Decides for all stages alike whether a step's gradients are applied. Lives beside the pipeline.
using judge_actor = caf::typed_actor<
    // From each stage, once a training step; answered when all stages have asked.
    caf::replies_to<ask_verdict>::with<verdict>>;

/// The owner of a stage's parameters: the only one who writes them. Lives beside its stage.
using optimizer_actor = caf::typed_actor<
    // From the stage, once a training step. Errors: bad_config for gradients that do not match.
    caf::replies_to<apply_gradients>::with<applied>>;

/// Hands batches to the pipeline's two ends as far as their credits allow; the rest waits with it.
/// Lives beside the pipeline, which bounds how many steps are under way.
using feeder_actor = caf::typed_actor<
    // From whoever reads batches, in the order of steps.
    caf::reacts_to<feed_batch>,
    // From the first and the last stage.
    caf::reacts_to<credit>>;

/// Reads batches for the feeder.
using data_actor = caf::typed_actor<
    // From the trainer. Errors: bad_data (strict mode, or no readable image in the batch).
    caf::replies_to<deliver_batch>::with<batch_delivered>>;

/// The first actor of a stage process, published as "host".
using host_actor = caf::typed_actor<
    // From the trainer. Errors: bad_config (unknown model or optimizer), bad_data.
    caf::replies_to<build_stage>::with<stage_built>,
    // From the trainer: the process's actors end and its main function returns.
    caf::reacts_to<shut_down>>;

}  // namespace troupe::actors
