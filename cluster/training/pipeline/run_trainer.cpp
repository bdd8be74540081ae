#include "cluster/training/pipeline/run_trainer.hpp"

#include <cstddef>
#include <functional>
#include <utility>

#include "cluster/launch/start/process_start.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/membership/stage_node.hpp"
#include "cluster/training/data_source.hpp"
#include "cluster/training/needs/memory_places.hpp"
#include "cluster/training/node_run.hpp"
#include "cluster/training/pipeline/run.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/stages/stage_orders.hpp"
#include "engine/partition/prediction.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

result<launch_choice> place_nodes(const registries& known, const launch_tables& config) {
  if (config.pipeline.stages_in == placement::threads)
    return launch_choice{make_thread_launcher(known), config.link.listen};
  return choose_launcher(config, stage_names_of(config.pipeline));
}

/// The config with what places stages, where nodes say their memory.
result<trainer_config> with_places(const planned_run& of) {
  if (!names_memory(of.config.cluster)) return of.config;
  return place_by_memory(of).map([](placed_run placed) { return std::move(placed.config); });
}

/// What the model's layers and stages are predicted to need.
void tell_prediction(const prepared_run& run) {
  if (!run.predicted) return;
  for (const auto& line : engine::to_lines(*run.predicted, run.layer_names)) log::info(line);
}

/// Where the stages run in processes or threads of this machine that no agent starts: agents know
/// the cores of theirs.
void warn_of_threads(const placement_tables& config) {
  if (config.cluster.launch != launch_way::local || !config.cluster.nodes.empty()) return;
  const auto cores = cores_here();
  if (const auto words = words_on_threads(thread_loads_of(config, cores).front(), cores);
      !words.empty())
    log::warning("this machine: " + words);
}

using driver = std::function<result<void>(node_group&)>;

result<run_end> drive_nodes(const registries& known, const trainer_config& config,
                            actors::progress_settings progress, driver drive,
                            run_control& control) {
  if (auto takes = checkpoint_keeper::try_folder(config.checkpoint, config.places); !takes)
    return tl::unexpected(takes.error());
  warn_of_threads(config);
  auto placed = place_nodes(known, config);
  if (!placed) return tl::unexpected(placed.error());
  return run_nodes({.where = std::move(placed->where),
                    .listen = std::move(placed->listen),
                    .names = stage_names_of(config.pipeline),
                    .progress = std::move(progress),
                    .drive = std::move(drive),
                    .understudies = config.cluster.understudies,
                    .own_messages = known.own_messages,
                    .invited = config.keeper_socket},
                   config.checkpoint, config.cluster, control);
}

/// The process of a stage has the data: nothing is known of the run before that process is up.
result<run_end> run_with_distant_data(const application& program, const trainer_config& config,
                                      std::size_t stage, run_control& control) {
  const auto prepare_and_drive = [&](node_group& group) -> result<void> {
    const auto distant = data_on_node::open(group, stage, dataset_options_of(program, config),
                                            config.data, config.train);
    if (!distant) return tl::unexpected(distant.error());
    auto run = prepare(program, config, (*distant)->data());
    if (!run) return tl::unexpected(run.error());
    if (run->is_complete) return {};
    run->distant = *distant;
    if (!config.observe.profile_only) return drive(group, program, config, *run, control);
    tell_prediction(*run);
    return {};
  };
  return drive_nodes(program.info.known, config, progress_of(config.observe, config.train),
                     prepare_and_drive, control);
}

}  // namespace

result<run_end> run_trainer(const application& program, const trainer_config& config) {
  const auto checkpoint_signal = signal_of(config.checkpoint);
  if (!checkpoint_signal) return tl::unexpected(checkpoint_signal.error());
  // Before there is a step there is nothing to keep, and it must not end the process.
  if (*checkpoint_signal != 0) ignore_signal(*checkpoint_signal);
  run_control control(config.train, config.config_files);
  const auto stage_with_data = stage_of_data(config, config.data);
  if (!stage_with_data) return tl::unexpected(stage_with_data.error());
  if (*stage_with_data) return run_with_distant_data(program, config, **stage_with_data, control);
  auto data = open_data_here(program, config);
  if (!data) return tl::unexpected(data.error());
  auto run = prepare(program, config, std::move(*data));
  if (!run) return tl::unexpected(run.error());
  if (run->is_complete) return run_end{};
  if (config.observe.profile_only) {
    tell_prediction(*run);
    return run_end{};
  }
  const auto placed = with_places({program, config, *run});
  if (!placed) return tl::unexpected(placed.error());
  return drive_nodes(
      program.info.known, *placed,
      stage_progress_of(placed->pipeline, placed->observe, placed->train, *run),
      [&](node_group& group) { return drive(group, program, *placed, *run, control); }, control);
}

result<void> run_stage_process(const application& program, const node_options& options) {
  return serve_as_node(options, program.info.known, stage_host(program.info.known));
}

result<void> run_keeper_process(const application& program, const node_options& options,
                                const std::shared_ptr<actors::kept_stages>& kept) {
  return serve_as_node(options, program.info.known, stage_host(program.info.known, kept));
}

}  // namespace troupe::cluster
