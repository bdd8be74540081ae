#include "cluster/training/pipeline/run.hpp"

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/training/beginning/verify.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/pipeline/last_trainer.hpp"
#include "cluster/training/pipeline/pipeline_run.hpp"
#include "cluster/training/pipeline/run_ending.hpp"
#include "cluster/training/pipeline/run_replay.hpp"
#include "cluster/training/pipeline/run_steps.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/stages/joined_listening.hpp"
#include "cluster/training/stages/node_memory.hpp"
#include "cluster/training/stages/stage_orders.hpp"
#include "cluster/training/stages/stage_places.hpp"
#include "cluster/training/stages/stage_reach.hpp"
#include "engine/model/model.hpp"
#include "engine/partition/prediction.hpp"
#include "engine/slices/slice_folder.hpp"
#include "messages/base/format.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

/// Of weights and state that pass through the trainer, in one message.
constexpr std::uint64_t piece_bytes = std::uint64_t{8} << 20;

engine::sum_wish sums_wished(const pipeline_config& pipeline, const link_config& link) {
  return {.fast = pipeline.reduce == reduce_order::fast,
          .network_is_trusted = link.network == network::trusted};
}

result<actors::pipeline> compose(pipeline_run& parts, const start_point& from) {
  const auto& config = parts.config;
  const auto& run = parts.run;
  if (auto read = read_data_again(parts); !read) return tl::unexpected(read.error());
  for (auto& each : parts.orders) {
    ++each.incarnation;
    each.weights_follow = !from.versions.empty();
    each.metrics = engine::names_of(parts.program.info.known.metrics);
  }
  auto stages = parts.group.build(parts.orders);
  if (!stages) return tl::unexpected(stages.error());
  // Asked for before all keepers are: if it is lost meanwhile, stages know that it was a spare one.
  const auto spare = parts.recovery ? parts.recovery->outliving_keeper() : nullptr;
  return actors::pipeline::compose(
      parts.group.system(), *stages, parts.schedule,
      actors::pipeline_options{
          .credits = config.pipeline.credits,
          .ties = run.ties,
          .skip_bad_steps = config.train.on_nan == nan_policy::skip,
          .loss_scale = run.scaler ? 1 : loss_scale_of(config.model, config.train),
          .scaler = from.scaler,
          .steps_before = from.steps_before,
          .clip_norm = config.optimizer.clip_norm,
          .pieces = {.bytes = piece_bytes},
          .data = run.distant ? run.distant->reader() : actors::data_actor(),
          .replicas = config.pipeline.replicas,
          .logical_replicas = logical_replicas_of(config.pipeline, config.train),
          .shares_state = config.pipeline.zero > 0,
          .synced_norm = config.train.batch_norm == norm_scope::sync,
          .sums = sums_wished(config.pipeline, config.link),
          .edges = config.pipeline.edges,
          .keepers = parts.recovery ? parts.recovery->keepers(lends_to_trainer(
                                          parts.group, config, config.link, are_lent_whole(run)))
                                    : std::vector<std::vector<caf::strong_actor_ptr>>(),
          .spare_keeper = spare,
          .logs_edges = parts.recovery != nullptr,
          .accumulate = config.train.accumulate});
}

/// The loss scaler behind a step's version, where it is dynamic. `stages`: see recover; `before`:
/// where they began.
result<std::optional<engine::loss_scaler>> scaler_behind(pipeline_run& parts, std::uint64_t step,
                                                         std::optional<actors::pipeline>& stages,
                                                         const start_point& before) {
  if (!before.scaler) return std::nullopt;
  const auto tell = [&](std::uint64_t each) -> std::optional<engine::loss_scaler> {
    if (each == before.steps_before) return before.scaler;
    if (each < before.steps_before || !stages) return std::nullopt;
    return stages->scaler_after(each).value_or(std::nullopt);
  };
  const auto found = parts.scalers.go_back(step, parts.config.train.accumulate, tell);
  if (!found)
    return fail(errc::stale,
                "the loss scale after step " + std::to_string(step) + " is not known any more");
  return found;
}

using point_finder = std::function<result<stage_recovery::point>(const return_sources&)>;

/// Reads where the run goes on. `stages`: as they were; none where they had not been composed.
result<start_point> go_back(pipeline_run& parts, const point_finder& find,
                            std::optional<actors::pipeline>& stages, const start_point& before) {
  way_back back(parts.run, parts.checkpoints, parts.beginning, parts.hosts);
  const return_sources sources{[&] { return open_again(parts.disks, parts.hosts); },
                               [&] { return parts.checkpoints.own_steps(); },
                               [&](std::uint64_t step) { return back.read_checkpoint(step); },
                               [&] { return back.read_beginning(); },
                               [&] { return back.why_no_beginning(); }};
  auto found = find(sources);
  if (!found) return tl::unexpected(found.error());
  if (found->at.from == return_core::source::versions) {
    const auto scaler = scaler_behind(parts, found->at.step, stages, before);
    if (!scaler) return tl::unexpected(scaler.error());
    return start_point{
        .steps_before = found->at.step, .scaler = *scaler, .versions = std::move(found->versions)};
  }
  auto read = back.take(found->at.from);
  if (!read) return read;
  if (found->at.from == return_core::source::anew) parts.beginning = *read;
  parts.checkpoints.went_back(read->steps_before);
  return read;
}

/// Waits for the checkpoint under way, whose stages are lost or told to end.
void end_checkpoint(pipeline_run& parts) {
  const auto print = [&](const std::string& line) { parts.report->print(line); };
  static_cast<void>(parts.checkpoints.last_step(actors::usual_deadlines.checkpoint, print));
}

/// Replaces what was lost, and finds where the run goes on. `stages`: see go_back.
result<start_point> recover(pipeline_run& parts, const error& why,
                            std::optional<actors::pipeline>& stages, const start_point& before) {
  const auto begin = std::chrono::steady_clock::now();
  end_checkpoint(parts);
  auto from = go_back(
      parts,
      [&](const return_sources& sources) {
        return parts.recovery->recover(why, parts.told.steps, sources);
      },
      stages, before);
  if (!from) return from;
  ++parts.recovered.returns;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  parts.report->print("the run goes on after step " + std::to_string(from->steps_before) + ", " +
                      format("%.1f s", took.count()) + " after the loss was known");
  return from;
}

/// Whether a checkpoint is checked and read once more: it may have been no more than touched, and
/// of hosts another one may have a copy. Ends the stages that could not read it.
result<bool> is_tried_again(pipeline_run& parts, const start_point& from, const error& why) {
  if (auto dropped = drop_stages_on(parts.ask, parts.group.hosts()); !dropped)
    return tl::unexpected(dropped.error());
  const auto step = from.steps_before;
  if (std::exchange(parts.tried_again, step) == step) return false;
  log::warning(why.text + (from.on_hosts ? "; the hosts are asked for this checkpoint once more"
                                         : "; this checkpoint is checked and read once more"));
  return true;
}

/// Where the run goes on when its stages could not read a checkpoint that it has written.
result<start_point> pass_over_own(pipeline_run& parts, const error& why,
                                  std::optional<actors::pipeline>& stages,
                                  const start_point& from) {
  const auto again = is_tried_again(parts, from, why);
  if (!again) return tl::unexpected(again.error());
  if (*again) {
    way_back back(parts.run, parts.checkpoints, parts.beginning, parts.hosts);
    const auto read = back.read_checkpoint(from.steps_before);
    if (!read) return tl::unexpected(read.error());
    if (*read) return back.take(return_core::source::checkpoint);
  } else {
    warn_of_unread(from.steps_before, why);
  }
  parts.checkpoints.went_back(from.steps_before - 1);  // or it would be read again
  return go_back(
      parts, [&](const return_sources& sources) { return parts.recovery->pass_over(why, sources); },
      stages, from);
}

/// Says where the run begins.
void tell_start(pipeline_run& parts, const start_point& from) {
  if (parts.config.restart > 0)
    parts.report->restart({.restart = parts.config.restart, .after_step = from.steps_before});
  parts.report->begin_behind(from.steps_before);
}

void tell_checkpoint(const start_point& from) {
  if (from.steps_before > 0)
    log::info("the run goes on from the checkpoint of step " + std::to_string(from.steps_before));
}

/// Has the run begin from its checkpoint once more, which is checked first where it is in a folder
/// of the trainer; hosts check theirs when they are asked for it. Returns why it cannot.
std::optional<error> reopen(prepared_run& run, const start_point& from) {
  if (!from.on_hosts && !from.file) return std::nullopt;  // weights of a file alone
  const auto find = [&]() -> result<whole_checkpoint> {
    if (from.on_hosts) return from.on_hosts->what;
    std::error_code absent;
    const auto& source = from.file->source;
    const auto is_folder = std::filesystem::is_directory(source, absent);
    return read_whole(is_folder ? source : source.parent_path());
  };
  const auto begun =
      find().and_then([&](const whole_checkpoint& whole) { return begin_from(run, whole); });
  return begun ? std::nullopt : std::optional(begun.error());
}

/// Where the run begins when its stages could not read the checkpoint that it was to begin from.
result<start_point> begin_elsewhere(pipeline_run& parts, const error& why) {
  const bool is_told = parts.told.steps > parts.beginning.steps_before;  // by this trainer
  const auto again = is_tried_again(parts, parts.beginning, why);
  if (!again) return tl::unexpected(again.error());
  auto unread = std::optional(why);
  if (*again) unread = reopen(parts.run, parts.beginning);
  parts.run.steps_before = parts.beginning.steps_before;  // a loss may have cut a search off
  auto found = search_beginning(parts.run, parts.hosts, std::move(unread));
  if (!found) return tl::unexpected(found.error());
  parts.beginning = beginning_of(parts.run, std::move(*found));
  tell_checkpoint(parts.beginning);
  if (is_told) {
    parts.checkpoints.went_back(parts.run.steps_before);
    return parts.beginning;
  }
  parts.checkpoints.begin_behind(parts.run.steps_before);
  parts.told.steps = parts.run.steps_before;
  parts.told.evaluated = parts.run.evaluated;
  tell_start(parts, parts.beginning);
  return parts.beginning;
}

/// Whether a run that has lost stages ends, since this trainer has stood still until all had left
/// it: what keeps versions for another trainer has those of all stages, and this one has none. Not
/// where no other comes, or where that was lost before and has none of the last steps.
bool gives_way_to_another(pipeline_run& parts) {
  const bool comes_another = parts.config.restart < parts.config.train.max_restarts;
  if (!comes_another || parts.control.stop.wanted() || !parts.told.is_noted) return false;
  if (!parts.recovery->is_outliving_lost() || !parts.group.node().stood_still()) return false;
  if (parts.group.lost({}).size() < parts.group.names().size()) return false;
  log::warning(
      "this trainer has stood still until all others had left it, and gives way to another one, "
      "for which versions are kept");
  return true;
}

/// Where the run goes on after a failure, if that does not end it. `is_unread`: its stages could
/// not read the checkpoint in `from`, where they were to begin.
result<start_point> next_start(pipeline_run& parts, const error& why, bool is_unread,
                               std::optional<actors::pipeline>& stages, const start_point& from) {
  auto cause = why;
  if (is_unread) {
    auto other =
        from.is_own ? pass_over_own(parts, why, stages, from) : begin_elsewhere(parts, why);
    if (other || other.error().code != errc::peer_lost) return other;
    cause = other.error();
  }
  const bool is_loss = parts.recovery && cause.code == errc::peer_lost;
  if (is_loss && !gives_way_to_another(parts)) return recover(parts, cause, stages, from);
  end_checkpoint(parts);
  return tl::unexpected(cause);
}

/// Composes the stages and trains with them, from `from` on; and again, from where it could go on,
/// when stages are lost, or cannot read where they begin, and that does not end the run.
result<void> train_to_end(pipeline_run& parts, start_point from) {
  std::optional<actors::pipeline> stages;
  bool verified = false;  // before that the stages are as the run begins, lost or not
  bool is_unread = false;
  const auto attempt = [&]() -> result<void> {
    auto made = compose(parts, from);
    if (!made) return tl::unexpected(made.error());
    stages.emplace(std::move(*made));
    for (const auto* line : {&stages->sum_line(), &stages->edge_line()})
      if (!line->empty()) parts.report->print(*line);
    const auto loaded = load(*stages, parts.run, parts.ask, from);
    is_unread = !loaded && is_of_checkpoint(from, loaded.error());
    if (loaded) parts.tried_again.reset();
    return loaded
        .and_then([&] {
          return parts.recovery ? stages->take_versions(from.steps_before) : result<void>();
        })
        .and_then([&]() -> result<void> {
          if (verified || !parts.config.train.verify || parts.control.stop.wanted()) return {};
          const auto print = [&](const std::vector<std::string>& lines) {
            parts.report->print(lines);
          };
          return verify(*stages, {parts.program, parts.config, parts.run}, print);
        })
        .map([&] { verified = true; })
        .and_then([&] { return train_steps(parts, *stages, from); });
  };
  for (;;) {
    is_unread = false;
    const auto done = attempt();
    if (done) return end_complete(parts, *stages);
    auto next = next_start(parts, done.error(), is_unread, stages, from);
    if (!next) {
      tell_end(parts);
      return tl::unexpected(next.error());
    }
    stages.reset();
    from = std::move(*next);
  }
}

/// Before there are stages: their nodes listen where those of others reach them.
result<void> arrange_doors(joined_listening& doors, node_group& group, actors::requester& ask,
                           const placement_tables& config, const link_config& link, bool wraps) {
  if (auto arranged = doors.arrange(); !arranged) return arranged;
  if (auto apart = check_listening(group, config); !apart) return apart;
  if (auto reached = check_reach(group, ask, config, wraps); !reached) return reached;
  tell_edges(group, config, link);
  return {};
}

/// The report of the run, which knows what its stages are predicted to take.
result<std::unique_ptr<reporter>> open_report(const planned_run& of,
                                              const std::vector<actors::build_stage>& orders) {
  const auto& config = of.config;
  const auto& run = of.run;
  auto out = run_reporter::open(config.observe, config.restart, config.json_is_begun,
                                progress_options_of(config.train, run));
  if (!out) return tl::unexpected(out.error());
  auto report = std::make_unique<reporter>(std::move(*out), config);
  report->expect_on_devices(device_memories(config.pipeline, orders), needs_to_tell(of, orders));
  if (run.predicted && config.observe.progress)
    report->print(engine::to_lines(*run.predicted, run.layer_names));
  return report;
}

result<checkpoint_keeper> open_checkpoints(const checkpointed_run& of,
                                           const std::vector<std::string>& command,
                                           const prepared_run& run) {
  auto keeper = checkpoint_keeper::open(of, run.steps_before, checkpoint_keeper::clock::now());
  if (!keeper) return keeper;
  keeper->warn_of_little_room(engine::bytes_of(engine::collect_weights(run.layers)));
  tell_command_to_resume(of.kept, of.train, command, run.steps_before);
  return keeper;
}

/// Of each stage of the first replica.
std::vector<std::uint64_t> weight_bytes_of(const prepared_run& run,
                                           const std::vector<actors::build_stage>& orders,
                                           std::size_t stages) {
  std::vector<std::uint64_t> all(stages);
  for (std::size_t stage = 0; stage < stages; ++stage)
    for (const auto& slice : orders.at(stage).slices)
      all[stage] += engine::bytes_of(tensors_of(run, slice));
  return all;
}

/// Null: a lost stage ends the run.
result<std::unique_ptr<stage_recovery>> open_recovery(node_group& group, joined_listening& doors,
                                                      const optimizers::registry& known,
                                                      const stage_tables& config,
                                                      const checkpoint_config& kept) {
  if (config.train.on_fault != fault_policy::recover) return std::unique_ptr<stage_recovery>();
  if (!group.outliving_host()) warn_of_shared_hosts(config);  // else there is one copy more
  return stage_recovery::open(group, doors, known, way_back::may_begin_anew(kept));
}

/// Behind the last step of a trainer that was lost, else where the run begins.
result<start_point> first_start(pipeline_run& parts) {
  auto left = left_by_last_trainer(parts);
  if (!left) return tl::unexpected(left.error());
  if (*left) {
    log::info("the run goes on after step " + std::to_string((*left)->steps_before) +
              ", from versions that were kept in memory");
    return std::move(**left);
  }
  tell_checkpoint(parts.beginning);
  return parts.beginning;
}

/// Says how a run that fails can be continued.
result<void> train_from_start(pipeline_run& parts) {
  const auto& config = parts.config;
  const auto from = first_start(parts);
  if (!from) return tl::unexpected(from.error());
  tell_start(parts, *from);
  auto done = train_to_end(parts, *from);
  if (!done)
    tell_way_on(config.checkpoint, config.train, config.command, parts.checkpoints.last_step(),
                parts.run.steps);
  return done;
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
  joined_listening doors(group, config.cluster);
  auto ask = group.requester();
  const planned_run planned{program, config, run};
  const bool wraps = orders->front().slices.size() > 1;
  if (auto met = arrange_doors(doors, group, ask, config, config.link, wraps); !met) return met;
  if (auto room = check_memory(group, ask, planned, *orders); !room) return room;
  checkpointed_run checkpointed(config, run.model.options, run.of_data);
  checkpointed.changed = changed_values(option_table(program.info), config, program.info.defaults);
  const disk_access hosts{group, ask, config.cluster, checkpointed, engine::random_word()};
  auto on_hosts = find_beginning_on_hosts(run, hosts);
  if (!on_hosts || run.is_complete) return on_hosts.map([](const auto&) {});
  auto report = open_report(planned, *orders);
  if (!report) return tl::unexpected(report.error());
  auto keeper = open_checkpoints(checkpointed, config.command, run);
  if (!keeper) return tl::unexpected(keeper.error());
  auto disks = open_disks_of(hosts, weight_bytes_of(run, *orders, config.pipeline.stages));
  if (!disks) return tl::unexpected(disks.error());
  auto recovery =
      open_recovery(group, doors, program.info.known.optimizers, config, config.checkpoint);
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
  return train_from_start(parts);
}

}  // namespace troupe::cluster
