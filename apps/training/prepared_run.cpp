#include "apps/training/prepared_run.hpp"

#include <algorithm>
#include <iterator>

#include "apps/training/partitioning.hpp"
#include "engine/data/sampler.hpp"
#include "engine/stage/model.hpp"
#include "engine/stage/recompute.hpp"
#include "engine/state/safetensors.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/saved_state.hpp"

namespace troupe::apps {
namespace {

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

/// What of an optimizer's state belongs to these parameters.
std::vector<engine::named_tensor> state_of(const std::vector<engine::named_tensor>& states,
                                           const std::vector<engine::named_tensor>& parameters) {
  std::vector<engine::named_tensor> found;
  for (const auto& state : states)
    for (const auto& parameter : parameters)
      if (optimizers::parameter_of(state.name) == parameter.name) found.push_back(state);
  return found;
}

/// A run with a fixed loss scale, or none, leaves a saved one.
result<void> take_scaler(prepared_run& run, const at::Tensor& kept,
                         const std::filesystem::path& file) {
  if (!run.scaler) return {};
  const auto scaler = optimizers::from_tensor(kept, *run.scaler);
  if (!scaler) return fail(scaler.error().code, file.string() + ": " + scaler.error().text);
  run.scaler = *scaler;
  return {};
}

/// Puts the weights of --init, and the state if it has any, into the run, cut like the model.
result<void> read_init(prepared_run& run, engine::model layers,
                       const cluster::model_config& config) {
  if (config.init.empty()) return {};
  const auto file = engine::load_safetensors(config.init);
  if (!file) return tl::unexpected(file.error());
  std::vector<engine::named_tensor> weights, states;
  for (const auto& each : *file) {
    if (each.name == optimizers::scaler_name) {
      if (auto taken = take_scaler(run, each.tensor, config.init); !taken) return taken;
    } else {
      (optimizers::is_state_name(each.name) ? states : weights).push_back(each);
    }
  }
  if (auto loaded = engine::load_weights(layers, weights); !loaded)
    return fail(loaded.error().code, config.init.string() + ": " + loaded.error().text);
  std::size_t used = 0;
  for (const auto range : run.ranges) {
    const auto part = engine::take_layers(layers, range);
    if (!part) return tl::unexpected(part.error());
    run.weights.push_back(engine::collect_weights(*part));
    run.states.push_back(state_of(states, engine::parameters(*part)));
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

/// Cuts the model, and what follows from where it is cut.
result<void> cut_model(prepared_run& run, const application& program,
                       const cluster::trainer_config& config) {
  const auto build = [&] {
    return actors::build_model(program.models, config.model.name, run.model);
  };
  auto layers = build();
  if (!layers) return tl::unexpected(layers.error());
  run.layer_names = engine::layer_names(*layers);
  const auto recomputed = engine::recomputed_layers(run.layer_names, config.pipeline.recompute);
  if (!recomputed) return tl::unexpected(recomputed.error());
  if (auto fine = check_groups(*layers, config.optimizer); !fine) return fine;
  auto partition = choose_partition(*layers, build, config, *run.data);
  if (!partition) return tl::unexpected(partition.error());
  run.ranges = std::move(partition->ranges);
  run.microbatches = partition->microbatches;
  run.predicted = std::move(partition->predicted);
  run.ties = actors::ties_between(*layers, run.ranges);
  return read_init(run, std::move(*layers), config.model);
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
  if (cluster::loss_scale_of(config) == 0)
    run.scaler = optimizers::loss_scaler{.interval = config.train.loss_scale_interval};
  if (auto cut = cut_model(run, program, config); !cut) return tl::unexpected(cut.error());

  const auto per_epoch =
      static_cast<std::uint64_t>(engine::batch_count(samples, config.train.batch_size));
  run.updates = config.train.steps ? *config.train.steps : *config.train.epochs * per_epoch;
  run.updates -= run.updates % config.train.accumulate;  // whole updates only
  if (run.updates > 0) return run;
  return fail(errc::bad_config, "--accumulate " + std::to_string(config.train.accumulate) +
                                    ": the run has fewer steps than one update needs");
}

result<engine::model> build_whole(const application& program, const cluster::trainer_config& config,
                                  const prepared_run& run) {
  auto layers = actors::build_model(program.models, config.model.name, run.model);
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
  return {.loss = config.train.loss,
          .precision = config.model.precision,
          .channels_last = config.model.memory_format == cluster::memory_format::channels_last,
          .seed = config.train.seed};
}

}  // namespace troupe::apps
