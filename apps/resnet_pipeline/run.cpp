#include "apps/resnet_pipeline/run.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "actors/pipeline/trainer.hpp"
#include "apps/resnet_pipeline/partition.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "cluster/launch/interrupt.hpp"
#include "cluster/membership/stage_node.hpp"
#include "cluster/membership/worker_group.hpp"
#include "cluster/observe/run_reporter.hpp"
#include "engine/data/dataset.hpp"
#include "engine/data/sampler.hpp"
#include "engine/stage/model.hpp"
#include "engine/state/safetensors.hpp"
#include "messages/log.hpp"

namespace troupe::apps {
namespace {

/// What is known of a run before any worker starts.
struct prepared_run {
  std::shared_ptr<const engine::dataset> data;
  std::int64_t classes = 0;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // layers [first, last) of each slice
  std::vector<std::vector<engine::named_tensor>> weights;   // of each slice; empty: from the seed
  std::uint64_t updates = 0;
};

actors::model_registry models() {
  actors::model_registry known;
  for (const auto& name : resnet_names()) {
    known[name] = [name](std::int64_t classes, std::uint64_t seed) {
      return build_resnet(name, classes, seed);
    };
  }
  return known;
}

result<std::shared_ptr<const engine::dataset>> open_data(const cluster::trainer_config& config) {
  auto data = engine::open_dataset({.source = config.data.source,
                                    .image_size = config.data.image_size,
                                    .seed = config.train.seed,
                                    .threads = config.data.threads,
                                    .strict = config.data.strict,
                                    .warn = {}});
  if (!data) return tl::unexpected(data.error());
  return std::shared_ptr<const engine::dataset>(std::move(*data));
}

result<std::int64_t> choose_classes(const cluster::model_config& config,
                                    const engine::dataset& data) {
  if (config.classes == 0) return data.classes();
  if (config.classes >= data.classes()) return config.classes;
  return fail(errc::bad_config, "--classes " + std::to_string(config.classes) + ": the data has " +
                                    std::to_string(data.classes()));
}

/// The weights of --init, cut like the model.
result<std::vector<std::vector<engine::named_tensor>>> initial_weights(
    engine::model layers, const cluster::model_config& config,
    const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
  std::vector<std::vector<engine::named_tensor>> parts;
  if (config.init.empty()) return parts;
  const auto file = engine::load_safetensors(config.init);
  if (!file) return tl::unexpected(file.error());
  if (auto loaded = engine::load_weights(layers, *file); !loaded)
    return fail(loaded.error().code, config.init.string() + ": " + loaded.error().text);
  for (const auto& [first, last] : ranges) {
    engine::model part;
    std::move(layers.begin() + static_cast<std::ptrdiff_t>(first),
              layers.begin() + static_cast<std::ptrdiff_t>(last), std::back_inserter(part));
    parts.push_back(engine::collect_weights(part));
  }
  return parts;
}

result<prepared_run> prepare(const cluster::trainer_config& config) {
  prepared_run run;
  auto data = open_data(config);
  if (!data) return tl::unexpected(data.error());
  run.data = std::move(*data);
  const auto samples = run.data->size(engine::split::train);
  if (samples == 0) return fail(errc::bad_data, config.data.source + " has no training images");
  const auto classes = choose_classes(config.model, *run.data);
  if (!classes) return tl::unexpected(classes.error());
  run.classes = *classes;

  auto layers = build_resnet(config.model.name, run.classes, config.train.seed);
  if (!layers) return tl::unexpected(layers.error());
  auto ranges = stage_ranges(*layers, config.pipeline, run.data->sample_shape());
  if (!ranges) return tl::unexpected(ranges.error());
  run.ranges = std::move(*ranges);
  auto weights = initial_weights(std::move(*layers), config.model, run.ranges);
  if (!weights) return tl::unexpected(weights.error());
  run.weights = std::move(*weights);

  const auto per_epoch =
      static_cast<std::uint64_t>(engine::batch_count(samples, config.train.batch_size));
  run.updates = config.train.steps ? *config.train.steps : *config.train.epochs * per_epoch;
  return run;
}

result<std::unique_ptr<cluster::workers>> place_workers(const cluster::trainer_config& config) {
  if (config.pipeline.stages_in == cluster::placement::threads)
    return cluster::make_worker_threads(models(), optimizers::built_in());
  auto link = cluster::process_link_of(config.link);
  if (!link) return tl::unexpected(link.error());
  return cluster::make_worker_processes(std::move(*link), config.observe.verbose);
}

actors::build_stage order_for(const cluster::trainer_config& config, const prepared_run& run,
                              const engine::model_layout& layout, std::uint32_t stage) {
  const auto& optimizer = config.optimizer;
  std::vector<actors::layer_range> slices;
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto [first, last] = run.ranges[layout.position_of({stage, chunk})];
    slices.push_back({first, last});
  }
  return {
      .stage = {stage},
      .model = config.model.name,
      .classes = run.classes,
      .seed = config.train.seed,
      .slices = std::move(slices),
      .loss = std::string(name_of(config.train.loss)),
      .bf16 = config.model.precision == cluster::precision::bf16,
      .channels_last = config.model.memory_format == cluster::memory_format::channels_last,
      .threads = cluster::threads_per_stage(config.pipeline, std::thread::hardware_concurrency()),
      .optimizer = optimizer.name,
      .optimizer_options = {{"lr", optimizer.lr},
                            {"momentum", optimizer.momentum},
                            {"dampening", optimizer.dampening},
                            {"weight_decay", optimizer.weight_decay},
                            {"nesterov", optimizer.nesterov ? 1.0 : 0.0}}};
}

cluster::progress_options progress_options(const cluster::trainer_config& config,
                                           const prepared_run& run) {
  auto options = cluster::progress_options_for(stderr);
  options.total_steps = run.updates;
  options.steps_per_epoch = static_cast<std::uint64_t>(
      engine::batch_count(run.data->size(engine::split::train), config.train.batch_size));
  return options;
}

cluster::step_report report_of(std::uint64_t update, const actors::step_outcome& outcome) {
  cluster::step_report report{.step = update,
                              .loss = outcome.loss,
                              .seconds = outcome.seconds,
                              .images_per_s = static_cast<double>(outcome.images) / outcome.seconds,
                              .stages = {}};
  for (std::size_t i = 0; i < outcome.stages.size(); ++i) {
    const auto& [busy_s, peak, contexts] = outcome.stages[i];
    report.stages.push_back({"stage-" + std::to_string(i), busy_s,
                             std::max(0.0, outcome.seconds - busy_s), peak, contexts});
  }
  report.bubble = cluster::bubble_of(report.stages, outcome.seconds);
  return report;
}

actors::training training_of(const cluster::trainer_config& config, const prepared_run& run) {
  return {.updates = run.updates,
          .batch_size = config.train.batch_size,
          .microbatches = config.pipeline.micro_batches,
          .shuffle = config.data.shuffle,
          .seed = config.train.seed,
          .evaluate = config.train.eval,
          .evaluate_every = config.train.eval_every,
          .learning_rate = [optimizer = config.optimizer, total = run.updates](std::uint64_t u) {
            return cluster::learning_rate(optimizer, u, total);
          }};
}

/// Drives the stages through the run and saves the weights at its end.
result<void> drive(cluster::worker_group& group, const cluster::trainer_config& config,
                   const prepared_run& run, const std::atomic<bool>& stop) {
  const auto schedule = schedule_of(config.pipeline);
  const auto layout = engine::layout_of(schedule, config.pipeline.stages);
  if (!layout) return tl::unexpected(layout.error());
  std::vector<actors::build_stage> orders;
  for (std::uint32_t i = 0; i < layout->stages; ++i)
    orders.push_back(order_for(config, run, *layout, i));
  auto stages = group.build(orders);
  if (!stages) return tl::unexpected(stages.error());
  auto pipeline =
      actors::pipeline::compose(group.system(), *stages, schedule, config.pipeline.credits);
  if (!pipeline) return tl::unexpected(pipeline.error());
  for (std::uint32_t i = 0; i < run.weights.size(); ++i) {
    if (auto loaded = pipeline->load_weights(i, run.weights[i]); !loaded) return loaded;
  }
  auto report = cluster::run_reporter::open(config.observe, progress_options(config, run));
  if (!report) return tl::unexpected(report.error());

  const actors::training_events events{
      [&](std::uint64_t update, const auto& outcome) {
        (*report)->step(report_of(update, outcome));
      },
      [&](const auto& outcome) {
        (*report)->evaluation({outcome.updates, outcome.accuracy, outcome.loss});
      },
      [&] { return stop.load() || (*report)->failure().has_value(); }};
  const auto trained =
      actors::train(group.system(), *pipeline, run.data, training_of(config, run), events);
  (*report)->finish();
  if (!trained) return tl::unexpected(trained.error());
  if ((*report)->failure()) return tl::unexpected(*(*report)->failure());
  if (run.data->skipped() > 0)
    log::warning(std::to_string(run.data->skipped()) + " unreadable images were skipped");
  if (config.train.save.empty()) return {};
  const auto weights = pipeline->read_weights();
  if (!weights) return tl::unexpected(weights.error());
  return engine::save_safetensors(config.train.save, *weights);
}

}  // namespace

result<run_end> run_trainer(const cluster::trainer_config& config) {
  const auto run = prepare(config);
  if (!run) return tl::unexpected(run.error());
  auto workers = place_workers(config);
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
  if (auto driven = drive(**group, config, *run, stop); !driven)
    return tl::unexpected((*group)->explain(driven.error()));
  return stop ? run_end::interrupted : run_end::complete;
}

result<void> run_worker(const cluster::node_options& options) {
  const auto link = cluster::process_link_of(options);
  if (!link) return tl::unexpected(link.error());
  return cluster::run_stage_node({.name = options.name,
                                  .trainer = options.join,
                                  .make_link = cluster::ucx_link_factory(*link)},
                                 models(), optimizers::built_in());
}

}  // namespace troupe::apps
