#include "apps/training/prepared_run.hpp"

#include <algorithm>
#include <iterator>

#include "apps/training/partitioning.hpp"
#include "engine/data/sampler.hpp"
#include "engine/stage/model.hpp"
#include "engine/stage/recompute.hpp"
#include "engine/state/safetensors.hpp"

namespace troupe::apps {
namespace {

using stage_weights = std::vector<std::vector<engine::named_tensor>>;

result<std::shared_ptr<const engine::dataset>> open_data(const cluster::trainer_config& config) {
  auto data = engine::open_dataset({.source = config.data.source,
                                    .context = config.transformer.context,
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

result<engine::model> build_model(const application& program, const std::string& name,
                                  const actors::model_order& order) {
  const auto found = program.models.find(name);
  if (found != program.models.end()) return found->second(order);
  std::string known;
  for (const auto& [each, make] : program.models) known += (known.empty() ? "" : ", ") + each;
  return fail(errc::bad_config, "unknown model '" + name + "'; known: " + known);
}

/// The weights of --init, cut like the model.
result<stage_weights> initial_weights(
    engine::model layers, const cluster::model_config& config,
    const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
  stage_weights parts;
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

/// Cuts the model, and what follows from where it is cut.
result<void> cut_model(prepared_run& run, const application& program,
                       const cluster::trainer_config& config) {
  const auto build = [&] { return build_model(program, config.model.name, run.model); };
  auto layers = build();
  if (!layers) return tl::unexpected(layers.error());
  run.layer_names = engine::layer_names(*layers);
  const auto recomputed = engine::recomputed_layers(run.layer_names, config.pipeline.recompute);
  if (!recomputed) return tl::unexpected(recomputed.error());
  auto partition = choose_partition(*layers, build, config, *run.data);
  if (!partition) return tl::unexpected(partition.error());
  run.ranges = std::move(partition->ranges);
  run.microbatches = partition->microbatches;
  run.predicted = std::move(partition->predicted);
  run.ties = actors::ties_between(*layers, run.ranges);
  auto weights = initial_weights(std::move(*layers), config.model, run.ranges);
  if (!weights) return tl::unexpected(weights.error());
  run.weights = std::move(*weights);
  return {};
}

}  // namespace

result<prepared_run> prepare(const application& program, const cluster::trainer_config& config) {
  prepared_run run;
  auto data = open_data(config);
  if (!data) return tl::unexpected(data.error());
  run.data = std::move(*data);
  const auto samples = run.data->size(engine::split::train);
  if (samples == 0) return fail(errc::bad_data, config.data.source + " has no training samples");
  if (program.check_data) {
    if (auto fits = program.check_data(config, *run.data); !fits)
      return tl::unexpected(fits.error());
  }
  const auto classes = choose_classes(config.model, *run.data);
  if (!classes) return tl::unexpected(classes.error());
  run.model = {*classes, config.train.seed, {}};
  if (program.model_options) run.model.options = program.model_options(config);
  if (auto cut = cut_model(run, program, config); !cut) return tl::unexpected(cut.error());

  const auto per_epoch =
      static_cast<std::uint64_t>(engine::batch_count(samples, config.train.batch_size));
  run.updates = config.train.steps ? *config.train.steps : *config.train.epochs * per_epoch;
  return run;
}

result<engine::model> build_whole(const application& program, const cluster::trainer_config& config,
                                  const prepared_run& run) {
  auto layers = build_model(program, config.model.name, run.model);
  if (!layers) return layers;
  engine::to_memory_format(*layers,
                           config.model.memory_format == cluster::memory_format::channels_last);
  if (run.weights.empty()) return layers;
  std::vector<engine::named_tensor> all;
  for (const auto& part : run.weights) std::ranges::copy(part, std::back_inserter(all));
  if (auto loaded = engine::load_weights(*layers, all); !loaded)
    return tl::unexpected(loaded.error());
  return layers;
}

engine::stage_options stage_options_of(const cluster::trainer_config& config) {
  engine::stage_options how;
  how.loss = config.train.loss == cluster::loss_kind::mse ? engine::loss_kind::mse
                                                          : engine::loss_kind::cross_entropy;
  how.precision = config.model.precision == cluster::precision::bf16 ? engine::precision::bf16
                                                                     : engine::precision::fp32;
  how.channels_last = config.model.memory_format == cluster::memory_format::channels_last;
  how.seed = config.train.seed;
  return how;
}

}  // namespace troupe::apps
