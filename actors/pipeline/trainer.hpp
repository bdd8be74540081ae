#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// The settings of one training run.
struct training {
  std::uint64_t steps = 1;         ///< Batches in all.
  std::uint64_t steps_before = 0;  ///< Of those, made before: the run continues after them.
  std::int64_t batch_size = 1;
  std::uint32_t microbatches = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;            ///< Of the order of samples.
  bool evaluate = true;              ///< After `evaluate_every` steps and at the end.
  std::uint64_t evaluate_every = 0;  ///< 0: after each pass over the data.
  std::int64_t labels = 1;           ///< Per sample: the tokens of a sequence.
  /// Steps before the last evaluation that was already made: none is due up to there any more, only
  /// after it. Nothing: `steps_before`.
  std::optional<std::uint64_t> evaluated = {};
  std::function<double(std::uint64_t step)> learning_rate;
  /// Steps whose gradients make one update: a run that is stopped ends between two updates, and
  /// evaluations within one are made all the same.
  std::uint64_t update_steps = 1;
};

struct evaluation {
  std::uint64_t steps = 0;  ///< Before it.
  /// Each metric's mean over the labels of the test split, in the order of the stages' orders.
  std::vector<double> metrics = {};
};

/// Callbacks of a run, in the calling thread.
struct training_events {
  std::function<void(std::uint64_t step, const step_outcome&)> on_step;
  std::function<void(const evaluation&)> on_evaluation;
  /// Asked before each step that begins an update: true ends the run after the steps in progress.
  /// Asked continuously during an evaluation between two updates, which is abandoned at once. Once
  /// true, it stays true.
  std::function<bool()> should_stop;
  /// Called once, before the last evaluation, when no further step follows: after so many steps the
  /// weights are final and may be read. May be left out. Errors end the run.
  std::function<result<void>(std::uint64_t steps)> on_trained = {};
  /// Asked once a step has begun, and its evaluation is over if there is one: whether a checkpoint
  /// of it is due. If so, on_checkpoint is called before the next step begins. Errors end the run.
  std::function<bool(std::uint64_t step)> is_checkpoint_due = {};
  std::function<result<void>(std::uint64_t step)> on_checkpoint = {};
  /// A stage was lost, or its arithmetic has thrown (see failed_work). Without error the steps go
  /// on. May be left out: then this ends the run, as do errors.
  std::function<result<void>(const error& why)> on_loss = {};
  /// A batch was read, whose step begins next. May be left out.
  std::function<void(const deliver_batch& order, const batch_delivered& as)> on_read = {};
  /// Asked during an evaluation that further steps follow: whether somebody waits for a checkpoint
  /// of the last step. If so, on_checkpoint is called at once. May be left out.
  std::function<bool(std::uint64_t step)> is_checkpoint_asked = {};
};

/// The reader of a run's batches, which feeds the pipeline, and how many samples there are.
struct batch_source {
  data_actor reader;  ///< Null: the pipeline's (pipeline_options), or who has taken its place.
  std::int64_t train_size = 0;
  std::int64_t test_size = 0;
};

/// Trains: requests batches from a data actor and steps from the pipeline, with two steps in
/// progress so that the next batch is read while the last one is computed. A run that was stopped
/// is not evaluated any more. Returns the number of steps made. Errors: those of a stage, or of the
/// data (bad_data); peer_lost.
[[nodiscard]] result<std::uint64_t> train(caf::actor_system& system, pipeline& stages,
                                          const batch_source& data, const training& run,
                                          const training_events& events);

/// The same with a data actor of this process, which ends with the run.
[[nodiscard]] result<std::uint64_t> train(caf::actor_system& system, pipeline& stages,
                                          const std::shared_ptr<const engine::dataset>& data,
                                          const training& run, const training_events& events);

}  // namespace troupe::actors
