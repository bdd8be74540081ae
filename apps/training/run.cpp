#include "apps/training/run.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "actors/pipeline/trainer.hpp"
#include "apps/training/prepared_run.hpp"
#include "apps/training/reporter.hpp"
#include "apps/training/verify.hpp"
#include "cluster/config/checks.hpp"
#include "cluster/config/secret_file.hpp"
#include "cluster/launch/interrupt.hpp"
#include "cluster/membership/stage_node.hpp"
#include "cluster/membership/worker_group.hpp"
#include "engine/partition/prediction.hpp"
#include "engine/stage/model.hpp"
#include "engine/state/safetensors.hpp"
#include "messages/log.hpp"

namespace troupe::apps {
namespace {

result<std::unique_ptr<cluster::workers>> place_workers(const application& program,
                                                        const cluster::trainer_config& config) {
  if (config.pipeline.stages_in == cluster::placement::threads)
    return cluster::make_worker_threads(program.models, optimizers::built_in());
  auto secret = config.link.secret_file.empty()
                    ? result<messages::cluster_secret>(messages::cluster_secret::random())
                    : cluster::read_secret_file(config.link.secret_file);
  if (!secret) return tl::unexpected(secret.error());
  return cluster::make_worker_processes(
      {.transport = config.link.transport,
       .secret = std::move(*secret),
       .beyond_loopback = !cluster::is_loopback(config.link.listen)},
      config.observe.verbose);
}

result<messages::cluster_secret> secret_of(const cluster::node_options& options) {
  if (options.secret_descriptor >= 0)
    return cluster::read_inherited_secret(options.secret_descriptor);
  if (!options.secret_file.empty()) return cluster::read_secret_file(options.secret_file);
  return messages::cluster_secret();
}

actors::build_stage order_for(const cluster::trainer_config& config, const prepared_run& run,
                              std::uint32_t stage) {
  const auto& optimizer = config.optimizer;
  return {
      .stage = {stage},
      .stages = config.pipeline.stages,
      .model = config.model.name,
      .classes = run.model.classes,
      .model_options = run.model.options,
      .seed = run.model.seed,
      .first_layer = run.ranges[stage].first,
      .last_layer = run.ranges[stage].second,
      .loss = std::string(name_of(config.train.loss)),
      .bf16 = config.model.precision == cluster::precision::bf16,
      .channels_last = config.model.memory_format == cluster::memory_format::channels_last,
      .threads = cluster::threads_per_stage(config.pipeline, std::thread::hardware_concurrency()),
      .recompute = config.pipeline.recompute,
      .optimizer = optimizer.name,
      .optimizer_options = {{"lr", optimizer.lr},
                            {"momentum", optimizer.momentum},
                            {"dampening", optimizer.dampening},
                            {"weight_decay", optimizer.weight_decay},
                            {"nesterov", optimizer.nesterov ? 1.0 : 0.0}}};
}

actors::training training_of(const cluster::trainer_config& config, const prepared_run& run) {
  return {.updates = run.updates,
          .batch_size = config.train.batch_size,
          .microbatches = run.microbatches,
          .shuffle = config.data.shuffle,
          .seed = config.train.seed,
          .evaluate = config.train.eval,
          .evaluate_every = config.train.eval_every,
          .labels = run.data->labels_per_sample(),
          .learning_rate = [optimizer = config.optimizer, total = run.updates](std::uint64_t u) {
            return cluster::learning_rate(optimizer, u, total);
          }};
}

/// What the program shows of its model, trained by the stages.
result<void> show(const application& program, const cluster::trainer_config& config,
                  const prepared_run& run, actors::pipeline& stages, reporter& report) {
  if (!program.show) return {};
  const auto layers = build_whole(program, config, run);
  if (!layers) return tl::unexpected(layers.error());
  const auto weights = stages.read_weights();
  if (!weights) return tl::unexpected(weights.error());
  if (auto loaded = engine::load_weights(*layers, *weights); !loaded) return loaded;
  if (const auto text = program.show(*layers, config); !text.empty()) report.print(text);
  return {};
}

/// Drives the composed stages through the run and saves the weights at its end.
result<void> train(cluster::worker_group& group, actors::pipeline& stages,
                   const application& program, const cluster::trainer_config& config,
                   const prepared_run& run, const std::atomic<bool>& stop) {
  auto report = reporter::open(config, run);
  if (!report) return tl::unexpected(report.error());
  if (run.predicted && config.observe.progress)
    (*report)->print(engine::to_lines(*run.predicted, run.layer_names));
  if (config.train.verify) {
    const auto print = [&](const std::vector<std::string>& lines) { (*report)->print(lines); };
    if (auto same = verify(stages, program, config, run, print); !same) return same;
  }
  const actors::training_events events{
      [&](std::uint64_t update, const auto& outcome) { (*report)->step(update, outcome); },
      [&](const auto& outcome) {
        (*report)->evaluation(outcome);
        if (program.judge) (*report)->print(program.judge(outcome));
      },
      [&] { return stop.load() || (*report)->failure().has_value(); }};
  const auto trained =
      actors::train(group.system(), stages, run.data, training_of(config, run), events);
  (*report)->finish(run.predicted);
  if (!trained) return tl::unexpected(trained.error());
  if ((*report)->failure()) return tl::unexpected(*(*report)->failure());
  if (run.data->skipped() > 0)
    log::warning(std::to_string(run.data->skipped()) + " unreadable images were skipped");
  if (!stop) {
    if (auto shown = show(program, config, run, stages, **report); !shown) return shown;
  }
  if (config.train.save.empty()) return {};
  const auto weights = stages.read_weights();
  if (!weights) return tl::unexpected(weights.error());
  return engine::save_safetensors(config.train.save, *weights);
}

/// Builds the stages on their workers and trains with them.
result<void> drive(cluster::worker_group& group, const application& program,
                   const cluster::trainer_config& config, const prepared_run& run,
                   const std::atomic<bool>& stop) {
  std::vector<actors::build_stage> orders;
  for (std::uint32_t i = 0; i < config.pipeline.stages; ++i)
    orders.push_back(order_for(config, run, i));
  auto stages = group.build(orders);
  if (!stages) return tl::unexpected(stages.error());
  auto pipeline = actors::pipeline::compose(
      group.system(), *stages, config.pipeline.schedule,
      actors::pipeline_options{.credits = config.pipeline.credits,
                               .ties = run.ties,
                               .skip_bad_steps = config.train.on_nan == cluster::nan_policy::skip});
  if (!pipeline) return tl::unexpected(pipeline.error());
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    if (auto loaded = pipeline->load_weights(i, run.weights[i]); !loaded) return loaded;
  }
  return train(group, *pipeline, program, config, run, stop);
}

}  // namespace

result<run_end> run_trainer(const application& program, const cluster::trainer_config& config) {
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  auto workers = place_workers(program, config);
  if (!workers) return tl::unexpected(workers.error());

  // The handlers share the workers: a signal finds them as long as it is handled.
  std::atomic<bool> stop = false;
  const std::shared_ptr<cluster::workers> all = std::move(*workers);
  auto guard = cluster::interrupt_guard::install(
      {.on_stop =
           [&stop](int) {
             stop = true;
             log::info("stopping after the steps under way; interrupt again to end at once");
           },
       .on_abort = [all](int) { all->kill(); },
       .on_suspend = [all] { all->suspend(); },
       .on_resume = [all] { all->resume(); }});
  if (!guard) return tl::unexpected(guard.error());
  auto group = cluster::worker_group::start(all, config.pipeline.stages, config.link.listen);
  if (!group) return tl::unexpected(group.error());
  if (auto driven = drive(**group, program, config, *run, stop); !driven)
    return tl::unexpected((*group)->explain(driven.error()));
  return stop ? run_end::interrupted : run_end::complete;
}

result<void> run_worker(const application& program, const cluster::node_options& options) {
  auto secret = secret_of(options);
  if (!secret) return tl::unexpected(secret.error());
  const auto link =
      cluster::ucx_link_factory({.transport = options.transport,
                                 .secret = std::move(*secret),
                                 .beyond_loopback = !cluster::is_loopback(options.join)});
  return cluster::run_stage_node({.name = options.name, .trainer = options.join, .make_link = link},
                                 program.models, optimizers::built_in());
}

}  // namespace troupe::apps
