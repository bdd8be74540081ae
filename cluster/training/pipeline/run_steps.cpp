#include "cluster/training/pipeline/run_steps.hpp"

#include <cmath>
#include <cstdint>
#include <string>

#include "actors/pipeline/trainer.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/evaluated.hpp"
#include "cluster/training/local_disks/kept_slices.hpp"
#include "cluster/training/pipeline/last_trainer.hpp"
#include "cluster/training/pipeline/run_replay.hpp"
#include "cluster/training/saving/checkpoint.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/saving.hpp"
#include "cluster/training/saving/streams.hpp"
#include "messages/base/log.hpp"
#include "optimizers/options.hpp"

namespace troupe::cluster {
namespace {

actors::training training_of(const train_config& train, const data_config& data,
                             const optimizer_config& optimizer, const prepared_run& run,
                             const start_point& from, const told_progress& told) {
  return {.steps = run.steps,
          .steps_before = from.steps_before,
          .batch_size = train.batch_size,
          .microbatches = run.microbatches,
          .shuffle = data.shuffle,
          .seed = train.seed,
          .evaluate = train.eval,
          .evaluate_every = train.eval_every,
          .labels = run.data->labels_per_sample(),
          .evaluated = told.evaluated,
          .learning_rate = [optimizer, total = run.steps](std::uint64_t u) {
            return learning_rate(optimizer, u, total);
          }};
}

/// What --save asks for.
saved_parts parts_of(actors::pipeline& stages, const train_config& config,
                     const prepared_run& run) {
  saved_parts parts{
      .weights = [&stages,
                  &run] { return result<engine::tensor_stream>(weights_of(stages, run.layers)); },
      .state = {}};
  if (config.save_state) parts.state = [&stages] { return state_of(stages); };
  return parts;
}

/// What checkpoints of the run are made of.
checkpoint_parts checkpoint_of(pipeline_run& parts, actors::pipeline& stages) {
  const auto tell = [](std::uint64_t step) {
    log::debug("the stages write the checkpoint of step " + std::to_string(step));
  };
  return {[&stages, tell](std::uint64_t step, const std::string& folder) {
            tell(step);
            return stages.write_slices(step, folder);
          },
          names_of_weights(parts.run.layers),
          parts.ask,
          [&stages, tell](std::uint64_t step, const auto& folders) {
            tell(step);
            return stages.write_slices(step, folders);
          },
          parts.disks ? &*parts.disks : nullptr,
          parts.run.data};
}

/// A step that was computed again gives the same loss where bits are promised, or something is
/// wrong that nobody would see in the weights.
void tell_step(pipeline_run& parts, actors::pipeline& stages, std::uint64_t step,
               const actors::step_outcome& outcome) {
  constexpr std::size_t remembered = 4096;
  auto& told = parts.told;
  std::uint64_t again = 0;
  for (const auto& each : outcome.stages) again += each.computed_again;
  parts.recovered.computed_again += again;
  if (again > 0)
    log::debug(std::to_string(again) + " actions were computed again in step " +
               std::to_string(step) + " by processes that had begun them before");
  if (step <= told.steps) {
    const bool any_order = parts.config.pipeline.reduce == reduce_order::fast;
    const auto before = told.losses.find(step);
    if (!any_order && before != told.losses.end() && before->second != outcome.loss &&
        !(std::isnan(before->second) && std::isnan(outcome.loss)))
      log::error("step " + std::to_string(step) + " was computed again, and its loss is " +
                 optimizers::to_text(outcome.loss) + ", but was " +
                 optimizers::to_text(before->second));
    return note_step(parts, stages, step);
  }
  told.steps = step;
  told.losses[step] = outcome.loss;
  if (told.losses.size() > remembered) told.losses.erase(told.losses.begin());
  parts.report->step(step, outcome);
  parts.checkpoints.told(step);
  note_step(parts, stages, step);
  // Not before: who has just lost a stage needs the cores.
  if (parts.recovery) parts.group.fill_understudies();
}

/// What a run does while its stages train. The weights are saved before the last evaluation.
class run_events {
 public:
  /// Both outlive it.
  run_events(pipeline_run& parts, actors::pipeline& stages)
      : parts_(parts),
        stages_(stages),
        saved_(parts_of(stages, parts.config.train, parts.run)),
        kept_(checkpoint_of(parts, stages)) {}

  /// It outlives them.
  [[nodiscard]] actors::training_events events() {
    return {[this](std::uint64_t step, const auto& outcome) {
              tell_step(parts_, stages_, step, outcome);
            },
            [this](const actors::evaluation& outcome) { tell_evaluation(outcome); },
            [this] { return parts_.control.stop.wanted(); },
            [this](std::uint64_t steps) { return save(steps); },
            [this](std::uint64_t step) { return is_due(step); },
            [this](std::uint64_t step) { return write_checkpoint(step); },
            [this](const error& why) { return on_loss(parts_, stages_, why); },
            [this](const auto& order, const auto& as) {
              if (parts_.run.distant) parts_.run.distant->note_read(order, as);
            },
            [this](std::uint64_t step) { return is_due(step) && parts_.control.stop.checkpoint; }};
  }

  /// Saves once more what found no place, when all is over.
  [[nodiscard]] result<void> end() { return parts_.control.saver.save_if_lost(saved_); }

 private:
  [[nodiscard]] bool is_due(std::uint64_t step) {
    parts_.checkpoints.report(print_);
    return parts_.checkpoints.is_due(step, checkpoint_keeper::clock::now(),
                                     parts_.control.stop.checkpoint);
  }

  void tell_evaluation(const actors::evaluation& outcome) {
    const auto of = evaluated(outcome.steps, parts_.program.info.known.metrics, outcome.metrics);
    parts_.told.evaluated = outcome.steps;
    parts_.report->evaluation(of);
    if (parts_.program.describe) parts_.report->print(parts_.program.describe(of));
    parts_.checkpoints.evaluated(outcome.steps);
    note_step(parts_, stages_, outcome.steps);
  }

  result<void> save(std::uint64_t steps) {
    if (auto some = parts_.report->check_applied(); !some && !parts_.control.stop.wanted())
      return some;
    auto done = parts_.control.saver.save(steps, parts_.report->any_applied(), saved_, print_);
    if (done) done = open_missing(parts_.disks, parts_.hosts);
    return done ? parts_.checkpoints.write_last(steps, kept_, print_) : done;
  }

  result<void> write_checkpoint(std::uint64_t step) {
    if (auto done = open_missing(parts_.disks, parts_.hosts); !done) return done;
    parts_.checkpoints.write(step, parts_.control.stop.checkpoint.exchange(false), kept_, print_);
    return {};
  }

  pipeline_run& parts_;
  actors::pipeline& stages_;
  const saved_parts saved_;
  const checkpoint_parts kept_;
  const checkpoint_keeper::printer print_ = [this](const std::string& line) {
    parts_.report->print(line);
  };
};

}  // namespace

result<void> train_steps(pipeline_run& parts, actors::pipeline& stages, const start_point& from) {
  const auto& run = parts.run;
  auto& system = parts.group.system();
  run_events during(parts, stages);
  const auto events = during.events();
  const auto& config = parts.config;
  auto terms = training_of(config.train, config.data, config.optimizer, run, from, parts.told);
  // No checkpoint has gradients that are partly accumulated.
  if (parts.checkpoints.are_kept()) terms.update_steps = config.train.accumulate;
  parts.control.stop.in_steps = true;
  const auto trained =
      run.distant ? actors::train(system, stages,
                                  actors::batch_source{{},
                                                       run.data->size(engine::split::train),
                                                       run.data->size(engine::split::test)},
                                  terms, events)
                  : actors::train(system, stages, run.data, terms, events);
  if (!trained) return tl::unexpected(trained.error());
  return during.end();
}

}  // namespace troupe::cluster
