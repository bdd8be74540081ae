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
#include "optimizers/groups.hpp"
#include "optimizers/saved_state.hpp"

namespace troupe::apps {
namespace {

/// What is known of a run before any worker starts.
struct prepared_run {
  std::shared_ptr<const engine::dataset> data;
  std::int64_t classes = 0;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // layers [first, last) of each slice
  std::vector<std::vector<engine::named_tensor>> weights;   // of each slice; empty: from the seed
  std::vector<std::vector<engine::named_tensor>> states;    // of its optimizer, like the weights
  std::uint64_t updates = 0;  // steps; several may make one optimizer step (--accumulate)
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

/// What of an optimizer's state belongs to these parameters.
std::vector<engine::named_tensor> state_of(const std::vector<engine::named_tensor>& states,
                                           const std::vector<engine::named_tensor>& parameters) {
  std::vector<engine::named_tensor> found;
  for (const auto& state : states)
    for (const auto& parameter : parameters)
      if (optimizers::parameter_of(state.name) == parameter.name) found.push_back(state);
  return found;
}

/// Puts the weights of --init, and the state if it has any, into the run, cut like the model.
result<void> read_init(prepared_run& run, engine::model layers,
                       const cluster::model_config& config) {
  if (config.init.empty()) return {};
  const auto file = engine::load_safetensors(config.init);
  if (!file) return tl::unexpected(file.error());
  std::vector<engine::named_tensor> weights, states;
  for (const auto& each : *file)
    (optimizers::is_state_name(each.name) ? states : weights).push_back(each);
  if (auto loaded = engine::load_weights(layers, weights); !loaded)
    return fail(loaded.error().code, config.init.string() + ": " + loaded.error().text);
  std::size_t used = 0;
  for (const auto& [first, last] : run.ranges) {
    engine::model part;
    std::move(layers.begin() + static_cast<std::ptrdiff_t>(first),
              layers.begin() + static_cast<std::ptrdiff_t>(last), std::back_inserter(part));
    run.weights.push_back(engine::collect_weights(part));
    run.states.push_back(state_of(states, engine::parameters(part)));
    used += run.states.back().size();
  }
  if (used == states.size()) return {};
  return fail(errc::bad_data,
              config.init.string() + ": holds optimizer state of parameters that the model lacks");
}

/// Whether each parameter group is for some parameter.
result<void> check_groups(const engine::model& layers, const cluster::optimizer_config& config) {
  const auto entry = optimizers::built_in().find(config.name);
  if (!entry) return tl::unexpected(entry.error());
  for (const auto& text : config.groups) {
    const auto rule = optimizers::parse_group(*entry, text);
    if (!rule) return tl::unexpected(rule.error());
    const bool used = std::ranges::any_of(layers, [&rule](const auto& layer) {
      return std::ranges::any_of(layer->parameters(), [&rule](const auto& parameter) {
        return optimizers::matches(*rule, parameter.name);
      });
    });
    if (!used) return fail(errc::bad_config, "parameter group '" + text + "' matches no parameter");
  }
  return {};
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
  if (auto fine = check_groups(*layers, config.optimizer); !fine)
    return tl::unexpected(fine.error());
  auto ranges = stage_ranges(*layers, config.pipeline, run.data->sample_shape());
  if (!ranges) return tl::unexpected(ranges.error());
  run.ranges = std::move(*ranges);
  if (auto read = read_init(run, std::move(*layers), config.model); !read)
    return tl::unexpected(read.error());

  const auto per_epoch =
      static_cast<std::uint64_t>(engine::batch_count(samples, config.train.batch_size));
  run.updates = config.train.steps ? *config.train.steps : *config.train.epochs * per_epoch;
  run.updates -= run.updates % config.train.accumulate;  // whole updates only
  if (run.updates > 0) return run;
  return fail(errc::bad_config, "--accumulate " + std::to_string(config.train.accumulate) +
                                    ": the run has fewer steps than one update needs");
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
      .optimizer_options = optimizer.options,
      .rules = {.groups = optimizer.groups,
                .clip_value = optimizer.clip_value,
                .clip_norm = optimizer.clip_norm,
                .accumulate = config.train.accumulate}};
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

/// Writes what --save asks for.
result<void> save(actors::pipeline& pipeline, const cluster::train_config& config) {
  auto saved = pipeline.read_weights();
  if (!saved) return tl::unexpected(saved.error());
  if (config.save_state) {
    auto states = pipeline.read_state();
    if (!states) return tl::unexpected(states.error());
    std::move(states->begin(), states->end(), std::back_inserter(*saved));
  }
  return engine::save_safetensors(config.save, *saved);
}

/// Gives each stage's optimizer the state of all its chunks, if there is any.
result<void> load_states(actors::pipeline& pipeline, const prepared_run& run,
                         const engine::model_layout& layout) {
  for (std::uint32_t stage = 0; stage < layout.stages && !run.states.empty(); ++stage) {
    std::vector<engine::named_tensor> kept;
    for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
      std::ranges::copy(run.states[layout.position_of({stage, chunk})], std::back_inserter(kept));
    if (kept.empty()) continue;
    if (auto loaded = pipeline.load_state(stage, kept); !loaded) return loaded;
  }
  return {};
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
  if (auto loaded = load_states(*pipeline, run, *layout); !loaded) return loaded;
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
  return save(*pipeline, config.train);
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
