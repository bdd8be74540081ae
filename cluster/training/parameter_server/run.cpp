#include "cluster/training/parameter_server/run.hpp"

#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/parameter_server/host_actor.hpp"
#include "actors/transfer/pieces.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"
#include "cluster/observe/run_reporter.hpp"
#include "cluster/training/node_run.hpp"
#include "cluster/training/parameter_server/builder.hpp"
#include "cluster/training/parameter_server/driving/driver.hpp"
#include "cluster/training/parameter_server/driving/server_state.hpp"
#include "cluster/training/parameter_server/prepare.hpp"
#include "cluster/training/parameter_server/recovery.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/saving.hpp"
#include "engine/model/model.hpp"
#include "engine/slices/summed_file.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

std::vector<std::string> node_names(const server_settings& config) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < config.shards; ++i) names.push_back("shard-" + std::to_string(i));
  for (std::uint32_t i = 0; i < config.workers; ++i) names.push_back("worker-" + std::to_string(i));
  return names;
}

/// What lasts as long as a run, while the server and its workers may be built again.
struct run_parts {
  node_group& group;
  const optimizer_config& optimizer;
  const train_config& train;
  const prepared_server& run;
  run_control& control;
  actors::requester& ask;
  std::unique_ptr<run_reporter> report;
  checkpoint_keeper checkpoints;
  std::uint64_t told_steps = 0;  // what is done again is not told again
  std::uint64_t told_evaluation = 0;
};

/// The optimizer's state of a shard after update `step`, for which it waits: the orders of lost
/// workers may still be on their way.
result<std::vector<engine::named_tensor>> read_state(actors::requester& ask,
                                                     const actors::shard_actor& shard,
                                                     std::uint64_t step) {
  constexpr std::chrono::milliseconds again{10};
  const auto end = std::chrono::steady_clock::now() + actors::usual_deadlines.count_workers;
  for (;;) {
    std::uint64_t version = 0;
    auto all =
        actors::gather_pieces([&](const actors::list_place& from) -> result<actors::tensor_piece> {
          auto part =
              ask.request<actors::shard_state_piece>(shard, actors::read_shard_state{.from = from},
                                                     actors::usual_deadlines.update)
                  .get();
          if (!part) return tl::unexpected(part.error());
          version = part->version.value;
          return std::move(part->piece);
        });
    if (!all || version == step) return all;
    if (version > step || std::chrono::steady_clock::now() > end)
      return fail(errc::timed_out, "a shard is at update " + std::to_string(version) +
                                       ", where a checkpoint is to be of step " +
                                       std::to_string(step));
    std::this_thread::sleep_for(again);
  }
}

/// What a checkpoint has beside the weights.
result<std::vector<engine::named_tensor>> gather_state(actors::requester& ask,
                                                       const built_server& server, driver& drives,
                                                       std::uint64_t step) {
  std::vector<std::vector<engine::named_tensor>> states;
  for (const auto& shard : server.shards) {
    auto state = read_state(ask, shard, step);
    if (!state) return state;
    states.push_back(std::move(*state));
  }
  auto whole = join_states(server.parts, states);
  if (!whole) return whole;
  auto buffers = drives.read_buffers();
  if (!buffers) return buffers;
  whole->insert(whole->end(), std::make_move_iterator(buffers->begin()),
                std::make_move_iterator(buffers->end()));
  return whole;
}

result<engine::tensor_stream> weights_of(driver& drives) {
  return drives.read_weights().map([](const auto& all) { return engine::stream_of(all); });
}

/// Writes the files of a checkpoint. The shards' state is read first: when they all have that
/// update, so have the weights.
result<actors::slice_written> write_files(run_parts& parts, const built_server& server,
                                          driver& drives, const actors::write_slice& what) {
  auto state = gather_state(parts.ask, server, drives, what.step);
  if (!state) return tl::unexpected(state.error());
  auto weights = weights_of(drives);
  if (!weights) return tl::unexpected(weights.error());
  auto files = engine::save_all_summed(
      what.folder,
      {{what.weights, std::move(*weights)}, {what.state, engine::stream_of(std::move(*state))}});
  if (!files) return tl::unexpected(files.error());
  return actors::slice_written{.files = std::move(*files)};
}

/// What checkpoints are made of: the trainer writes both files before it goes on.
checkpoint_parts parts_of_checkpoints(run_parts& parts, const built_server& server,
                                      driver& drives) {
  const auto write = [&](std::uint64_t step, const std::string& folder) {
    const actors::write_slice what{step, folder, "weights.server.safetensors",
                                   "state.server.safetensors"};
    return actors::slices_under_way{
        {{0, what, actors::settled_future(write_files(parts, server, drives, what))}},
        actors::settled_future(result<std::optional<engine::loss_scaler>>(std::nullopt))};
  };
  return {write, names_of_weights(parts.run.layers), parts.ask};
}

/// Drives the workers to the end, or until it should stop. The weights are saved before the last
/// evaluation.
class attempt {
 public:
  attempt(run_parts& parts, const built_server& server, const server_start& from)
      : parts_(parts),
        server_(server),
        drives_(parts.ask, server.coordinator, server.workers, *parts.run.data, plan(from),
                events()) {}
  attempt(const attempt&) = delete;
  attempt& operator=(const attempt&) = delete;

  result<void> run() {
    const saved_parts saved{.weights = [this] { return weights_of(drives_); }};
    parts_.control.stop.in_steps = true;
    auto done = drives_.train();
    // The coordinator decides about the pushes of lost workers; the weights are read after that.
    const auto accounts = done ? drives_.close_accounts() : result<void>();
    const auto steps = drives_.steps_done();
    if (done) done = parts_.control.saver.save(steps, steps > 0, saved, printer());
    if (done && accounts) done = write_last(steps);
    if (done) done = drives_.finish();
    if (done) done = parts_.control.saver.save_if_lost(saved);
    return done ? accounts : done;
  }

 private:
  [[nodiscard]] checkpoint_keeper::printer printer() const {
    return [this](const std::string& line) { parts_.report->print(line); };
  }

  [[nodiscard]] drive_plan plan(const server_start& from) const {
    auto made = parts_.run.plan;
    made.steps_before = from.steps;
    made.evaluated = parts_.told_evaluation;
    return made;
  }

  [[nodiscard]] drive_events events() {
    return {.on_step = [this](const auto& step) { tell(step); },
            .on_evaluation =
                [this](const auto& outcome) {
                  parts_.told_evaluation = outcome.eval_step;
                  parts_.report->evaluation(outcome);
                  parts_.checkpoints.evaluated(outcome.eval_step);
                },
            .on_note = printer(),
            .why_lost =
                [this](std::size_t worker, const error& why) {
                  const auto shards = parts_.run.server.shards;
                  return parts_.group.leave_out(shards + worker, why).text;
                },
            .should_stop = [this] { return parts_.control.stop.wanted(); },
            .wants_checkpoint =
                [this](std::uint64_t step) {
                  parts_.checkpoints.report(printer());
                  return parts_.checkpoints.is_due(step, checkpoint_keeper::clock::now(),
                                                   parts_.control.stop.checkpoint);
                },
            .on_checkpoint = [this](std::uint64_t step) { return write(step); }};
  }

  void tell(const step_report& step) {
    if (step.step <= parts_.told_steps) return;
    parts_.told_steps = step.step;
    parts_.report->step(step);
  }

  /// Nothing is under way: all steps are told, but for shares that were lost.
  [[nodiscard]] result<void> write(std::uint64_t step) {
    parts_.checkpoints.told(step);
    parts_.checkpoints.write(step, parts_.control.stop.checkpoint.exchange(false),
                             parts_of_checkpoints(parts_, server_, drives_), printer());
    return {};
  }

  [[nodiscard]] result<void> write_last(std::uint64_t steps) {
    parts_.checkpoints.told(steps);
    return parts_.checkpoints.write_last(steps, parts_of_checkpoints(parts_, server_, drives_),
                                         printer());
  }

  run_parts& parts_;
  const built_server& server_;
  driver drives_;
};

/// Where a run goes on that has lost its server: with the newest checkpoint of its own that can be
/// read, or where there is none, where it began. Later ones are written again. `where`: for a
/// sentence.
server_start go_back(run_parts& parts, std::string& where) {
  auto& kept = parts.checkpoints;
  static_cast<void>(kept.last_step(actors::usual_deadlines.checkpoint,
                                   [&](const auto& line) { parts.report->print(line); }));
  for (const auto step : kept.own_steps()) {
    where = "its checkpoint of step " + std::to_string(step);
    auto opened = kept.of_step(step).and_then([&](const whole_checkpoint& whole) {
      return check_start(parts.run.layers, read_checkpoint(whole), {});
    });
    if (opened) {
      kept.went_back(step);
      return {step, std::move(*opened)};
    }
    log::warning("the run cannot go back to " + where + ": " + opened.error().text);
  }
  const auto& begin = parts.run.begin;
  kept.went_back(begin.steps);
  where = begin.steps > 0 ? "step " + std::to_string(begin.steps) + ", where it began"
                          : std::string("its beginning");
  if (!kept.are_kept()) where += "; checkpoints ([checkpoint] dir) would have kept what was done";
  return begin;
}

result<void> attempt_once(run_parts& parts, const server_start& from) {
  const auto server =
      server_builder(parts.group, parts.ask, parts.optimizer, parts.run).build(from);
  if (!server) return tl::unexpected(server.error());
  return attempt(parts, *server, from).run();
}

/// Attempts the run, and again, from where it could go on, when that is lost without which the
/// server cannot go on, and that does not end the run.
result<void> run_to_end(run_parts& parts) {
  const auto& server = parts.run.server;
  server_recovery recovery(parts.group, parts.ask, node_names(server), server.shards);
  auto from = parts.run.begin;
  auto done = attempt_once(parts, from);
  while (!done && parts.train.on_fault == fault_policy::recover) {
    const auto lost = recovery.find_lost(done.error(), parts.told_steps);
    if (!lost) return tl::unexpected(lost.error());
    std::string where;
    from = go_back(parts, where);
    log::warning(*lost + ": other processes replace " + recovery.lost_places() +
                 ", and the run goes on from " + where);
    done = recovery.replace().and_then([&] { return attempt_once(parts, from); });
  }
  return done;
}

result<void> drive(node_group& group, const program_info& program, const trainer_config& config,
                   const prepared_server& run, run_control& control) {
  auto ask = group.requester();
  auto options = progress_options_for(stderr);
  options.total_steps = run.plan.steps;
  options.steps_per_epoch = run.steps_per_epoch;
  auto report = run_reporter::open(config.observe, config.restart, config.json_is_begun, options);
  if (!report) return tl::unexpected(report.error());
  checkpointed_run checkpointed(config, server_settings_of_steps(run.server), run.of_data);
  checkpointed.changed = changed_values(option_table(program), config, program.defaults);
  auto checkpoints =
      checkpoint_keeper::open(checkpointed, run.begin.steps, checkpoint_keeper::clock::now());
  if (!checkpoints) return tl::unexpected(checkpoints.error());
  checkpoints->warn_of_little_room(engine::bytes_of(engine::collect_weights(run.layers)));
  if (run.begin.steps > 0)
    log::info("the run goes on from the checkpoint of step " + std::to_string(run.begin.steps));
  tell_command_to_resume(config.checkpoint, config.train, config.command, run.begin.steps);
  if (config.restart > 0)
    (*report)->restart({.restart = config.restart, .after_step = run.begin.steps});
  run_parts parts{group,
                  config.optimizer,
                  config.train,
                  run,
                  control,
                  ask,
                  std::move(*report),
                  std::move(*checkpoints),
                  run.begin.steps,
                  run.plan.evaluated};
  const auto done = run_to_end(parts);
  parts.report->finish();
  if (!done)
    tell_way_on(config.checkpoint, config.train, config.command, parts.checkpoints.last_step(),
                run.plan.steps);
  return done;
}

}  // namespace

result<run_end> run_server_trainer(const server_application& program,
                                   const trainer_config& config) {
  const auto checkpoint_signal = signal_of(config.checkpoint);
  if (!checkpoint_signal) return tl::unexpected(checkpoint_signal.error());
  // Before there is a step there is nothing to keep, and it must not end the process.
  if (*checkpoint_signal != 0) ignore_signal(*checkpoint_signal);
  run_control control(config.train, config.config_files);
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  if (run->is_complete) return run_end{};
  if (auto takes = checkpoint_keeper::try_folder(config.checkpoint, config.places); !takes)
    return tl::unexpected(takes.error());
  auto names = node_names(config.own.of<server_settings>());
  auto placed = choose_launcher(config, names);  // of this machine: there are no [[node]] tables
  if (!placed) return tl::unexpected(placed.error());
  return run_nodes(
      {.where = std::move(placed->where),
       .listen = std::move(placed->listen),
       .names = std::move(names),
       .progress = progress_of(config.observe, config.train),
       .drive =
           [&](node_group& group) { return drive(group, program.info, config, *run, control); },
       .own_messages = program.info.known.own_messages},
      config.checkpoint, config.cluster, control);
}

result<void> run_server_node(const server_application& program, const node_options& options) {
  const auto& known = program.info.known;
  const auto spawn = [&](caf::actor_system& system, const joined_node& here,
                         shut_down_handler on_shut_down) {
    return caf::actor_cast<caf::strong_actor_ptr>(
        actors::spawn_server_host(system, {.make_learner = program.make_learner,
                                           .optimizers = known.optimizers,
                                           .memory = here.node.memory(),
                                           .on_shut_down = std::move(on_shut_down),
                                           .progress = here.progress,
                                           .losses = known.losses,
                                           .metrics = known.metrics}));
  };
  return serve_as_node(options, known, spawn);
}

}  // namespace troupe::cluster
