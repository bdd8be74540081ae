#include "cluster/training/prepared_run.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/observe/one_class.hpp"
#include "cluster/training/measured_layers.hpp"
#include "cluster/training/partitioning.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "engine/data/class_count.hpp"
#include "engine/data/sampler.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "engine/state/scaler_state.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"
#include "optimizers/groups.hpp"

namespace troupe::cluster {
namespace {

/// Whether the program has the model.
result<void> check_model(const application& program, const model_config& model,
                         const setting_places& places) {
  const auto& name = model.name;
  const auto& models = program.info.known.models;
  if (models.contains(name)) return {};
  std::vector<std::string_view> known;
  for (const auto& [each, make] : models) known.push_back(each);
  return fail(errc::bad_config, places.of("model.name") + ": " + unknown_value(name, known));
}

/// The model with so many classes.
result<described_model> describe_with(const application& program, const trainer_config& config,
                                      std::int64_t classes) {
  engine::model_order order{classes, config.train.seed, {}};
  if (program.model_options) order.options = program.model_options(config);
  auto blueprint = engine::find_model(program.info.known.models, config.model.name, order);
  if (!blueprint) return tl::unexpected(blueprint.error());
  auto layers = engine::describe(*blueprint);
  if (!layers) return tl::unexpected(layers.error());
  return described_model{std::move(order), std::move(*blueprint), std::move(*layers)};
}

/// Whether the smallest micro-batch of a step with so many samples is enough for the model.
bool suffices(std::int64_t samples, std::int64_t parts, std::int64_t least) {
  return samples / std::min(samples, parts) >= least;
}

/// Whether the model can be trained on every micro-batch of the run, if each step has `parts`.
result<void> check_micro_batches(const application& program, const trainer_config& config,
                                 const prepared_run& run, std::int64_t parts) {
  if (!program.least_samples) return {};
  const auto least = program.least_samples(run.data->sample_shape());
  const auto samples = run.data->size(engine::split::train);
  const auto batch = std::min(config.train.batch_size, samples);
  const auto place = [&](std::int64_t size) {
    return size >= least ? config.places.of("pipeline.micro_batches", "train.batch_size") + ": " +
                               std::to_string(parts) + " micro-batches: "
                         : config.places.of("train.batch_size") + ": ";
  };
  const auto need = "; a batch norm of " + config.model.name + " needs " + std::to_string(least) +
                    " samples of this size: ";
  if (!suffices(batch, parts, least))
    return fail(
        errc::bad_config,
        place(batch) + "a step of " + counted(batch, "sample") + " has a micro-batch of one" +
            need + "take a larger --batch-size" +
            (batch >= least ? ", at most --micro-batches " + std::to_string(batch / least) : "") +
            ", or a larger --image-size where the data has one");
  const auto rest = samples % batch;
  const bool is_reached = run.steps >= static_cast<std::uint64_t>(samples / batch + 1);
  if (rest == 0 || !is_reached || config.observe.profile_only || suffices(rest, parts, least))
    return {};
  return fail(
      errc::bad_config,
      place(rest) + "the last step of a pass over " + std::to_string(samples) + " samples has " +
          std::to_string(rest) + ", and a micro-batch of one" + need +
          "take a --batch-size that leaves more" +
          (rest >= least ? ", or at most --micro-batches " + std::to_string(rest / least) : ""));
}

/// Has the run begin from what was opened, once all of it is checked.
result<void> take_beginning(prepared_run& run, result<checkpoint> opened,
                            const std::vector<std::string>& skip) {
  auto checked = check_state(run, std::move(opened), skip);
  if (!checked) return tl::unexpected(checked.error());
  run.scaler = checked->scaler;
  run.init = std::move(checked->from);
  return {};
}

/// Whether the model has the weights that a checkpoint names, and no others. Their shapes are
/// compared when stages read them.
result<void> check_names(const prepared_run& run, const whole_checkpoint& from) {
  auto own = names_of_weights(run.layers);
  auto named = from.manifest.weights;
  std::ranges::sort(own);
  std::ranges::sort(named);
  if (own == named) return {};
  std::vector<std::string> others;
  std::ranges::set_symmetric_difference(own, named, std::back_inserter(others));
  return fail(errc::bad_data, from.folder.string() + ": weight '" + others.front() +
                                  "' is in the checkpoint or the model, but not in both");
}

/// Opens the checkpoint that the run goes on from, if there is one, or else what --init names.
/// Where that was whole and is so no more, it is looked for once more.
result<void> read_beginning(prepared_run& run, const checkpointed_run& of) {
  std::set<std::uint64_t> tried;
  for (;;) {
    const auto begins = find_beginning(of, run.steps, *run.data);
    if (!begins) return tl::unexpected(begins.error());
    run.is_complete = begins->is_complete;
    if (run.is_complete) return {};
    const auto& from = begins->from;
    if (!from) return begin_anew(run, of.model, of.train);
    warn_of_read_again(*from, *run.data);
    auto begun = begin_from(run, *from);
    const bool is_first = tried.insert(from->manifest.step).second;
    if (begun || !is_first || read_whole(from->folder)) return begun;
  }
}

/// Those of some layers, in their order.
std::vector<engine::named_tensor> gather(
    const prepared_run& run, engine::layer_range which,
    std::initializer_list<std::vector<engine::named_tensor> (engine::layer::*)() const> parts) {
  std::vector<engine::named_tensor> all;
  for (auto i = which.first; i < which.last; ++i)
    for (const auto part : parts)
      std::ranges::move((run.layers.at(i).get()->*part)(), std::back_inserter(all));
  return all;
}

/// Whether each parameter group is for some parameter, and the ends of a tie are in one.
result<void> check_groups(const engine::model& layers, const optimizer_config& optimizer,
                          const setting_places& places, const optimizers::registry& known) {
  const auto entry = known.find(optimizer.name);
  if (!entry) return tl::unexpected(places.blame("optimizer.name", entry.error()));
  const auto all = engine::parameters(layers);
  std::vector<optimizers::group_rule> rules;
  for (const auto& text : optimizer.groups) {
    auto rule = optimizers::parse_group(*entry, text);
    if (!rule) return tl::unexpected(rule.error());
    const auto is_in_it = [&](const auto& each) { return optimizers::matches(*rule, each.name); };
    if (std::ranges::none_of(all, is_in_it))
      return fail(errc::bad_config, places.of("optimizer.groups") + ": parameter group '" + text +
                                        "' matches no parameter");
    rules.push_back(std::move(*rule));
  }
  const auto group_of = [&](const std::string& name) {
    return std::ranges::find_if(rules,
                                [&](const auto& rule) { return optimizers::matches(rule, name); });
  };
  for (const auto& [one, other] : engine::ties(layers))
    if (group_of(one) != group_of(other))
      return fail(errc::bad_config, places.of("optimizer.groups") + ": '" + one + "' and '" +
                                        other +
                                        "' are one weight: put both into the same "
                                        "parameter group, or neither into any");
  return {};
}

/// The ties between stages, once it is known where the model is cut.
result<void> find_ties(prepared_run& run, const pipeline_config& config,
                       const engine::schedule_registry& known) {
  const auto layout = layout_of(config, known);
  if (!layout) return tl::unexpected(layout.error());
  run.ties = actors::ties_between(run.layers, run.ranges, *layout);
  return {};
}

/// Whether the model has the layers and parameters that the config names.
result<void> name_layers(prepared_run& run, const pipeline_config& pipeline,
                         const optimizer_config& optimizer, const setting_places& places,
                         const registries& known) {
  run.layer_names = engine::layer_names(run.layers);
  const auto recomputed = engine::recomputed_layers(run.layer_names, pipeline.recompute);
  if (!recomputed) return tl::unexpected(places.blame("pipeline.recompute", recomputed.error()));
  return check_groups(run.layers, optimizer, places, known.optimizers);
}

/// Cuts the model, and what follows from where it is cut.
result<void> cut_model(prepared_run& run, const registries& known, const trainer_config& config) {
  if (auto fine = name_layers(run, config.pipeline, config.optimizer, config.places, known); !fine)
    return fine;
  auto partition = choose_partition({run.layers, run.blueprint, config, known, *run.data});
  if (!partition) return tl::unexpected(partition.error());
  run.ranges = std::move(partition->ranges);
  run.microbatches = partition->microbatches;
  run.predicted = std::move(partition->predicted);
  if (auto found = find_ties(run, config.pipeline, known.schedules); !found) return found;
  return read_beginning(run, {config, run.model.options, run.of_data});
}

result<void> count_steps(prepared_run& run, const train_config& train,
                         const setting_places& places) {
  const auto samples = run.data->size(engine::split::train);
  const auto per_epoch = static_cast<std::uint64_t>(engine::batch_count(samples, train.batch_size));
  run.steps = train.steps ? *train.steps : *train.epochs * per_epoch;
  run.steps -= run.steps % train.accumulate;  // whole updates only
  if (run.steps > 0) return {};
  return fail(errc::bad_config, places.of("train.accumulate") +
                                    ": the run has fewer steps than the " +
                                    std::to_string(train.accumulate) + " that one update takes");
}

/// Where the loss scale is dynamic.
std::optional<engine::loss_scaler> first_scaler(const model_config& model,
                                                const train_config& train) {
  if (loss_scale_of(model, train) != 0) return std::nullopt;
  return engine::loss_scaler{.interval = train.loss_scale_interval};
}

}  // namespace

// A run with a fixed loss scale, or none, leaves a saved one.
result<file_state> check_state(const prepared_run& run, result<checkpoint> from,
                               const std::vector<std::string>& skip) {
  auto sound = check_start(run.layers, std::move(from), skip);
  if (!sound) return tl::unexpected(sound.error());
  auto scaler = run.scaler;
  if (scaler && sound->scaler.defined()) {
    const auto& files = sound->state_files;
    const auto kept = engine::from_tensor(sound->scaler, *scaler);
    if (!kept) {
      const auto file = files.empty() ? sound->source : files.front()->file();
      return tl::unexpected(error_about(file.string(), kept.error()));
    }
    scaler = *kept;
  }
  return file_state{std::move(*sound), std::move(scaler)};
}

result<void> begin_from(prepared_run& run, whole_checkpoint from) {
  run.init.reset();
  run.on_hosts.reset();
  run.steps_before = from.manifest.step;
  run.evaluated = evaluated_before(from);
  if (!from.manifest.is_on_hosts()) return take_beginning(run, read_checkpoint(from), {});
  if (auto fits = check_names(run, from); !fits) return fits;
  auto scaler = scaler_in(run, from);
  if (!scaler) return tl::unexpected(scaler.error());
  run.scaler = *scaler;
  run.on_hosts = std::move(from);
  return {};
}

result<void> begin_anew(prepared_run& run, const model_config& model, const train_config& train) {
  run.init.reset();
  run.on_hosts.reset();
  run.steps_before = 0;
  run.evaluated = 0;
  run.scaler = first_scaler(model, train);
  if (model.init.empty()) return {};
  return take_beginning(run, read_checkpoint(model.init), model.init_skip);
}

result<std::optional<engine::loss_scaler>> scaler_in(const prepared_run& run,
                                                     const whole_checkpoint& from) {
  const auto& kept = from.manifest.scaler;
  if (!run.scaler || !kept) return run.scaler;
  const auto tensor = engine::to_tensor({.scale = kept->scale, .applied = kept->applied});
  return engine::from_tensor(tensor, *run.scaler)
      .map([](const engine::loss_scaler& scaler) { return std::optional(scaler); })
      .map_error([&](const error& why) { return error_about(from.folder.string(), why); });
}

result<described_model> describe_model(const application& program, const trainer_config& config,
                                       const engine::dataset& data) {
  const auto classes = engine::choose_classes(config.model.classes, data.classes());
  if (!classes) return tl::unexpected(config.places.blame("model.classes", classes.error()));
  return describe_with(program, config, *classes);
}

result<prepared_run> prepare_without_data(const application& program,
                                          const trainer_config& config) {
  if (auto known = check_model(program, config.model, config.places); !known)
    return tl::unexpected(known.error());
  prepared_run run;
  if (config.model.classes == 0) return run;
  auto described = describe_with(program, config, config.model.classes);
  if (!described) return tl::unexpected(described.error());
  run.model = std::move(described->order);
  run.blueprint = std::move(described->blueprint);
  run.layers = std::move(described->layers);
  const auto& known = program.info.known;
  if (auto named = name_layers(run, config.pipeline, config.optimizer, config.places, known);
      !named)
    return tl::unexpected(named.error());
  auto slices = named_slices(run.layers, config.pipeline, config.places, known);
  if (!slices) return tl::unexpected(slices.error());
  run.ranges = std::move(*slices);
  if (auto found = find_ties(run, config.pipeline, known.schedules); !found)
    return tl::unexpected(found.error());
  if (config.checkpoint.resume.empty())
    if (auto begun = begin_anew(run, config.model, config.train); !begun)
      return tl::unexpected(begun.error());
  return run;
}

result<prepared_run> prepare(const application& program, const trainer_config& config,
                             std::shared_ptr<const engine::dataset> data) {
  if (auto known = check_model(program, config.model, config.places); !known)
    return tl::unexpected(known.error());
  prepared_run run;
  run.data = std::move(data);
  const auto samples = run.data->size(engine::split::train);
  if (samples == 0) return fail(errc::bad_data, config.data.source + " has no training samples");
  if (program.check_data) {
    if (auto fits = program.check_data(config, *run.data); !fits)
      return tl::unexpected(fits.error());
  }
  auto described = describe_model(program, config, *run.data);
  if (!described) return tl::unexpected(described.error());
  run.model = std::move(described->order);
  run.blueprint = std::move(described->blueprint);
  run.layers = std::move(described->layers);
  run.scaler = first_scaler(config.model, config.train);
  auto noted = record_of(config.checkpoint, *run.data);
  if (!noted) return tl::unexpected(noted.error());
  run.of_data = std::move(*noted);
  if (auto counted = count_steps(run, config.train, config.places); !counted)
    return tl::unexpected(counted.error());
  const auto fits = [&](std::uint32_t parts) {
    return check_micro_batches(program, config, run, std::max(1U, parts));
  };
  if (auto enough = fits(config.pipeline.micro_batches); !enough)
    return tl::unexpected(enough.error());
  if (auto cut = cut_model(run, program.info.known, config); !cut)
    return tl::unexpected(cut.error());
  if (auto enough = fits(run.microbatches); !enough) return tl::unexpected(enough.error());
  warn_of_one_class(config.data.source, *run.data);
  return run;
}

std::vector<engine::named_tensor> tensors_of(const prepared_run& run, engine::layer_range which) {
  return gather(run, which, {&engine::layer::parameters, &engine::layer::buffers});
}

std::vector<engine::named_tensor> parameters_of(const prepared_run& run,
                                                engine::layer_range which) {
  return gather(run, which, {&engine::layer::parameters});
}

result<std::uint64_t> tensors_a_parameter(const optimizer_config& optimizer,
                                          const optimizers::registry& known) {
  const auto entry = known.find(optimizer.name);
  if (!entry) return tl::unexpected(entry.error());
  const auto options = optimizers::complete(*entry, optimizer.options);
  if (!options) return tl::unexpected(options.error());
  return actors::tensors_a_parameter(*entry, *options);
}

result<engine::stage_options> stage_options_of(const train_config& train, const model_config& model,
                                               const registries& known) {
  auto loss = engine::find_loss(known.losses, train.loss);
  if (!loss) return tl::unexpected(loss.error());
  return engine::stage_options{.loss = std::move(*loss),
                               .precision = model.precision,
                               .channels_last = model.memory_format == memory_format::channels_last,
                               .seed = train.seed};
}

}  // namespace troupe::cluster
