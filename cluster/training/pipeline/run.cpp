#include "cluster/training/pipeline/run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/pipeline/trainer.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/evaluated.hpp"
#include "cluster/training/local_disks/kept_slices.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "cluster/training/pipeline/recovery.hpp"
#include "cluster/training/pipeline/reporter.hpp"
#include "cluster/training/pipeline/run_replay.hpp"
#include "cluster/training/pipeline/start_point.hpp"
#include "cluster/training/pipeline/verify.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/saving.hpp"
#include "cluster/training/saving/streams.hpp"
#include "cluster/training/stages/joined_listening.hpp"
#include "cluster/training/stages/node_memory.hpp"
#include "cluster/training/stages/stage_orders.hpp"
#include "cluster/training/stages/stage_places.hpp"
#include "cluster/training/stages/stage_reach.hpp"
#include "engine/model/model.hpp"
#include "engine/partition/prediction.hpp"
#include "messages/base/format.hpp"
#include "messages/base/log.hpp"
#include "optimizers/options.hpp"

namespace troupe::cluster {
namespace {

/// Of weights and state that pass through the trainer, in one message.
constexpr std::uint64_t bytes_at_once = std::uint64_t{8} << 20;

actors::training training_of(const trainer_config& config, const prepared_run& run,
                             const start_point& from, const told_progress& told) {
  return {.steps = run.steps,
          .steps_before = from.steps_before,
          .batch_size = config.train.batch_size,
          .microbatches = run.microbatches,
          .shuffle = config.data.shuffle,
          .seed = config.train.seed,
          .evaluate = config.train.eval,
          .evaluate_every = config.train.eval_every,
          .labels = run.data->labels_per_sample(),
          .evaluated = told.evaluated,
          .learning_rate = [optimizer = config.optimizer, total = run.steps](std::uint64_t u) {
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

/// Of the model's parameters and buffers.
std::uint64_t bytes_of(const engine::model& layers) {
  std::uint64_t bytes = 0;
  for (const auto& each : engine::collect_weights(layers)) bytes += each.tensor.nbytes();
  return bytes;
}

/// For --verbose: what the trainer's process had to do with the data.
void tell_traffic(node_group& group) {
  const auto stats = group.node().link_stats();
  log::debug("the trainer has sent " + std::to_string(stats.bytes_sent) + " bytes and received " +
             std::to_string(stats.bytes_received));
}

/// A step that was computed again gives the same loss where bits are promised, or something is
/// wrong that nobody would see in the weights.
void tell_step(pipeline_run& parts, std::uint64_t step, const actors::step_outcome& outcome) {
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
    return;
  }
  told.steps = step;
  told.losses[step] = outcome.loss;
  if (told.losses.size() > remembered) told.losses.erase(told.losses.begin());
  parts.report->step(step, outcome);
  parts.checkpoints.told(step);
  // Not before: who has just lost a stage needs the cores.
  if (parts.recovery) parts.group.fill_understudies();
}

/// Drives the composed stages through the run. The weights are saved before the last evaluation.
result<void> train(pipeline_run& parts, actors::pipeline& stages, const start_point& from) {
  const auto& run = parts.run;
  auto& system = parts.group.system();
  const auto saved = parts_of(stages, parts.config.train, run);
  const auto tell = [](std::uint64_t step) {
    log::debug("the stages write the checkpoint of step " + std::to_string(step));
  };
  const checkpoint_parts kept{[&](std::uint64_t step, const std::string& folder) {
                                tell(step);
                                return stages.write_slices(step, folder);
                              },
                              names_of_weights(run.layers),
                              parts.ask,
                              [&](std::uint64_t step, const auto& folders) {
                                tell(step);
                                return stages.write_slices(step, folders);
                              },
                              parts.disks ? &*parts.disks : nullptr,
                              run.data};
  const auto print = [&](const std::string& line) { parts.report->print(line); };
  const actors::training_events events{
      [&](std::uint64_t step, const auto& outcome) { tell_step(parts, step, outcome); },
      [&](const auto& outcome) {
        const auto of = evaluated(outcome.steps, parts.program.info.known.metrics, outcome.metrics);
        parts.told.evaluated = outcome.steps;
        parts.report->evaluation(of);
        if (parts.program.describe) parts.report->print(parts.program.describe(of));
        parts.checkpoints.evaluated(outcome.steps);
      },
      [&] { return parts.control.stop.wanted(); },
      [&](std::uint64_t steps) -> result<void> {
        if (auto some = parts.report->check_applied(); !some && !parts.control.stop.wanted())
          return some;
        auto done = parts.control.saver.save(steps, parts.report->any_applied(), saved, print);
        if (done) done = open_missing(parts.disks, parts.hosts);
        return done ? parts.checkpoints.write_last(steps, kept, print) : done;
      },
      [&](std::uint64_t step) {
        parts.checkpoints.report(print);
        return parts.checkpoints.is_due(step, checkpoint_keeper::clock::now(),
                                        parts.control.stop.checkpoint);
      },
      [&](std::uint64_t step) -> result<void> {
        if (auto done = open_missing(parts.disks, parts.hosts); !done) return done;
        parts.checkpoints.write(step, parts.control.stop.checkpoint.exchange(false), kept, print);
        return {};
      },
      [&](const error& why) { return on_loss(parts, stages, why); }};
  const auto terms = training_of(parts.config, run, from, parts.told);
  parts.control.stop.in_steps = true;
  const auto trained =
      run.distant ? actors::train(system, stages,
                                  actors::batch_source{{},
                                                       run.data->size(engine::split::train),
                                                       run.data->size(engine::split::test)},
                                  terms, events)
                  : actors::train(system, stages, run.data, terms, events);
  if (!trained) return tl::unexpected(trained.error());
  return parts.control.saver.save_if_lost(saved);
}

engine::sum_wish sums_wished(const trainer_config& config) {
  return {.fast = config.pipeline.reduce == reduce_order::fast,
          .network_is_trusted = config.link.network == network::trusted};
}

result<actors::pipeline> compose(pipeline_run& parts, const start_point& from) {
  const auto& config = parts.config;
  const auto& run = parts.run;
  if (auto read = read_data_again(parts); !read) return tl::unexpected(read.error());
  for (auto& each : parts.orders) {
    each.weights_follow = !from.versions.empty();
    each.metrics = engine::names_of(parts.program.info.known.metrics);
  }
  auto stages = parts.group.build(parts.orders);
  if (!stages) return tl::unexpected(stages.error());
  return actors::pipeline::compose(
      parts.group.system(), *stages, parts.schedule,
      actors::pipeline_options{.credits = config.pipeline.credits,
                               .ties = run.ties,
                               .skip_bad_steps = config.train.on_nan == nan_policy::skip,
                               .loss_scale = run.scaler ? 1 : loss_scale_of(config),
                               .scaler = from.scaler,
                               .steps_before = from.steps_before,
                               .clip_norm = config.optimizer.clip_norm,
                               .pieces = {.bytes = bytes_at_once},
                               .data = run.distant ? run.distant->reader() : actors::data_actor(),
                               .replicas = config.pipeline.replicas,
                               .logical_replicas = logical_replicas_of(config),
                               .shares_state = config.pipeline.zero > 0,
                               .synced_norm = config.train.batch_norm == norm_scope::sync,
                               .sums = sums_wished(config),
                               .keepers = parts.recovery
                                              ? parts.recovery->keepers(lends_to_trainer(
                                                    parts.group, config, are_lent_whole(run)))
                                              : std::vector<std::vector<caf::strong_actor_ptr>>(),
                               .logs_edges = parts.recovery != nullptr,
                               .accumulate = config.train.accumulate});
}

/// What the program shows of its model, trained by the stages, and of its own actors.
result<void> show(pipeline_run& parts, actors::pipeline& stages) {
  const auto& program = parts.program;
  const auto print = [&](const std::string& text) {
    if (!text.empty()) parts.report->print(text);
  };
  if (program.show) {
    const auto predict = [&](const at::Tensor& inputs) { return stages.predict(inputs); };
    const auto text = program.show(predict, parts.config);
    if (!text) return tl::unexpected(text.error());
    print(*text);
  }
  if (!program.ask_nodes) return {};
  const auto find = [&](const std::string& node, const std::string& name) {
    return parts.group.node().find(node, name, actors::usual_deadlines.join);
  };
  return program.ask_nodes({parts.group.system(), parts.group.names(), find}).map(print);
}

std::string times(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void tell_recovered(const recovery_totals& of) {
  if (of.replays + of.returns == 0) return;
  log::info("after losses there were " + times(of.replays, "replay") + " of lost stages and " +
            times(of.returns, "return") +
            " of all; processes that had begun them before computed " +
            std::to_string(of.computed_again) + " actions again");
}

void tell_end(pipeline_run& parts) {
  tell_traffic(parts.group);
  parts.report->finish(parts.run.predicted);
  tell_recovered(parts.recovered);
  if (parts.run.data->skipped() > 0)
    log::warning(std::to_string(parts.run.data->skipped()) + " unreadable images were skipped");
}

/// Whoever interrupts a run that has no step left is told that nothing of it is missing.
void tell_complete(pipeline_run& parts) {
  const auto steps = parts.run.steps;
  if (!parts.control.stop.wanted() || parts.told.steps < steps) return;
  const auto& config = parts.config;
  std::string kept;
  if (!config.train.save.empty() && parts.control.saver.end().not_saved == 0)
    kept += "; the weights are complete in " + config.train.save.string();
  const auto folder = checkpoint_folder(config.checkpoint.dir).path_of(steps);
  std::error_code absent;
  if (!config.checkpoint.dir.empty() &&
      std::filesystem::exists(folder / checkpoint_folder::manifest_name, absent))
    kept += "; the checkpoint is complete in " + folder.string();
  const bool lacks_evaluation = config.train.eval && parts.told.evaluated < steps &&
                                parts.run.data->size(engine::split::test) > 0;
  parts.report->print("interrupted after the last step, " + std::to_string(steps) + kept +
                      (lacks_evaluation ? "; only the last evaluation is left out" : ""));
}

/// Replaces what was lost, and finds where the run goes on. `stages`: as they were; none where they
/// had not been composed.
result<start_point> recover(pipeline_run& parts, const error& why,
                            std::optional<actors::pipeline>& stages, const start_point& before) {
  const auto print = [&](const std::string& line) { parts.report->print(line); };
  const auto begin = std::chrono::steady_clock::now();
  way_back back(parts.run, parts.config, parts.checkpoints, parts.beginning,
                [&](const whole_checkpoint& of) { return find_on_hosts(parts.hosts, of); });
  const return_sources sources{[&] { return open_again(parts.disks, parts.hosts); },
                               [&] { return parts.checkpoints.own_steps(); },
                               [&](std::uint64_t step) { return back.read_checkpoint(step); },
                               [&] { return back.read_beginning(); },
                               [&] { return back.why_no_beginning(); }};
  static_cast<void>(parts.checkpoints.last_step(actors::usual_deadlines.checkpoint, print));
  auto found = parts.recovery->recover(why, parts.told.steps, sources);
  if (!found) return tl::unexpected(found.error());
  ++parts.recovered.returns;
  auto from = before;
  if (found->at.from != return_core::source::versions) {
    auto read = back.take(found->at.from);
    if (!read) return read;
    from = std::move(*read);
    parts.checkpoints.went_back(from.steps_before);
  } else if (stages) {
    const auto scaler = stages->scaler_after(found->at.step);
    if (!scaler) return tl::unexpected(scaler.error());
    from = {
        .steps_before = found->at.step, .scaler = *scaler, .versions = std::move(found->versions)};
  } else {
    from.steps_before = found->at.step;
    from.versions = std::move(found->versions);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  print("the run goes on behind step " + std::to_string(from.steps_before) + ", " +
        format("%.1f s", took.count()) + " after the loss was known");
  return from;
}

/// Composes the stages and trains with them, from `from` on; and again, from where it could go on,
/// when stages are lost and that does not end the run.
result<void> train_to_end(pipeline_run& parts, start_point from) {
  std::optional<actors::pipeline> stages;
  bool verified = false;  // before that the stages are as the run begins, lost or not
  const auto attempt = [&]() -> result<void> {
    auto made = compose(parts, from);
    if (!made) return tl::unexpected(made.error());
    stages.emplace(std::move(*made));
    if (!stages->sum_line().empty()) parts.report->print(stages->sum_line());
    return load(*stages, parts.run, parts.ask, from)
        .and_then([&] {
          return parts.recovery ? stages->take_versions(from.steps_before) : result<void>();
        })
        .and_then([&]() -> result<void> {
          if (verified || !parts.config.train.verify || parts.control.stop.wanted()) return {};
          const auto print = [&](const std::vector<std::string>& lines) {
            parts.report->print(lines);
          };
          return verify(*stages, parts.program, parts.config, parts.run, print);
        })
        .map([&] { verified = true; })
        .and_then([&] { return train(parts, *stages, from); });
  };
  for (;;) {
    const auto done = attempt();
    if (done || !parts.recovery || done.error().code != errc::peer_lost) {
      const auto print = [&](const std::string& line) { parts.report->print(line); };
      if (!done)
        static_cast<void>(parts.checkpoints.last_step(actors::usual_deadlines.checkpoint, print));
      tell_end(parts);
      if (done) tell_complete(parts);
      if (!done || parts.control.stop.wanted()) return done;
      const auto shown = show(parts, *stages);
      if (shown || shown.error().code != errc::peer_lost) return shown;
      // The run is done and saved: a stage that is lost now does not undo that.
      log::warning(parts.group.explain(shown.error()).text + "; no sample is shown");
      return done;
    }
    auto found = recover(parts, done.error(), stages, from);
    if (!found) {
      tell_end(parts);
      return tl::unexpected(found.error());
    }
    stages.reset();
    from = std::move(*found);
  }
}

/// Before there are stages: their nodes listen where those of others reach them.
result<void> settle_doors(joined_listening& doors, node_group& group, actors::requester& ask,
                          const trainer_config& config, bool wraps) {
  if (auto settled = doors.settle(); !settled) return settled;
  if (auto apart = check_listening(group, config); !apart) return apart;
  if (auto reached = check_reach(group, ask, config, wraps); !reached) return reached;
  tell_edges(group, config);
  return {};
}

}  // namespace

result<void> drive(node_group& group, const application& program, const trainer_config& config,
                   prepared_run& run, run_control& control) {
  const auto schedule = schedule_of(config.pipeline, program.info.known.schedules);
  auto orders = orders_for(config, run, schedule);
  if (!orders) return tl::unexpected(orders.error());
  tell_orders(run, *orders,
              config.pipeline.stages_in == placement::threads
                  ? "threads of this process"
                  : "link " + std::string(name_of(transport_of(config.link))));
  joined_listening doors(group, config);
  actors::requester ask(group.system(),
                        [&group](const caf::node_id& id) { return group.node().name_of(id); });
  const bool wraps = orders->front().slices.size() > 1;
  if (auto met = settle_doors(doors, group, ask, config, wraps); !met) return met;
  if (auto room = check_memory(group, ask, program, config, run, *orders); !room) return room;
  const disk_access hosts{group, ask, config, word_of_run()};
  auto on_hosts = settle_beginning(run, hosts);
  if (!on_hosts || run.is_complete) return on_hosts.map([](const auto&) {});
  auto report = reporter::open(config, run);
  if (!report) return tl::unexpected(report.error());
  (*report)->expect_on_devices(device_memories(config.pipeline, *orders),
                               needs_to_tell(program, config, run, *orders));
  if (run.predicted && config.observe.progress)
    (*report)->print(engine::to_lines(*run.predicted, run.layer_names));
  auto keeper = checkpoint_keeper::open(config, run.model.options, run.steps_before,
                                        checkpoint_keeper::clock::now(), run.of_data);
  if (!keeper) return tl::unexpected(keeper.error());
  keeper->warn_of_little_room(bytes_of(run.layers));
  if (run.steps_before > 0)
    log::info("the run goes on from the checkpoint of step " + std::to_string(run.steps_before));
  tell_command_to_resume(config, run.steps_before);
  auto disks = open_disks_of(hosts);
  if (!disks) return tl::unexpected(disks.error());
  auto recovery = result<std::unique_ptr<stage_recovery>>(nullptr);
  if (config.train.on_fault == fault_policy::recover) {
    warn_of_shared_hosts(config);
    recovery = stage_recovery::open(group, doors, program.info.known.optimizers,
                                    way_back::may_begin_anew(config));
  }
  if (!recovery) return tl::unexpected(recovery.error());
  pipeline_run parts{group,
                     program,
                     config,
                     run,
                     control,
                     std::move(*orders),
                     schedule,
                     std::move(*report),
                     ask,
                     std::move(*keeper),
                     std::move(*recovery),
                     beginning_of(run, std::move(*on_hosts)),
                     hosts,
                     std::move(*disks),
                     {.losses = {}, .steps = run.steps_before, .evaluated = run.evaluated}};
  auto done = train_to_end(parts, parts.beginning);
  if (!done) tell_way_on(config, parts.checkpoints.last_step(), run.steps);
  return done;
}

}  // namespace troupe::cluster
