#include "cluster/training/partitioning.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/devices/nccl_memory.hpp"
#include "cluster/training/measured_layers.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/base/free_memory.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/kernels/machine_rates.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "engine/partition/partition.hpp"
#include "engine/partition/profile.hpp"
#include "engine/partition/profile_file.hpp"
#include "engine/stage/work_thread.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using cut_list = std::vector<std::size_t>;

constexpr int profile_repeats = 3;
constexpr double shared_memory_bytes_per_s = 5e9;
constexpr double tcp_bytes_per_s = 2e9;

/// Whether there is a layer for each slice.
result<void> check_slices(const engine::model& layers, const pipeline_config& config,
                          const setting_places& places, const registries& known) {
  const auto layout = layout_of(config, known.schedules);
  if (!layout) return tl::unexpected(layout.error());
  return engine::check_stages(layers.size(), layout->stages, layout->chunks)
      .map_error([&](error why) {
        const auto schedule =
            config.plan ? "the plan of " + config.schedule_file.string() : config.schedule;
        if (layout->chunks > 1) why.text += " (schedule: " + schedule + ")";
        return places.blame("pipeline.stages", why);
      });
}

result<cut_list> fixed_cuts(const engine::model& layers, const pipeline_config& config,
                            const setting_places& places, const registries& known,
                            std::vector<std::int64_t> sample_shape) try {
  if (auto fits = check_slices(layers, config, places, known); !fits)
    return tl::unexpected(fits.error());
  if (config.partition == partition::cuts)
    return engine::parse_cuts(engine::layer_names(layers), config.cut)
        .map_error([&](const error& why) {
          return error_about(places.of("pipeline.cut", "pipeline.partition"), why);
        });
  std::vector<double> costs;
  for (const auto& layer : layers) costs.push_back(layer->macs(sample_shape));
  return engine::even_cuts(costs, slices_of(config, known.schedules));
} catch (const std::exception& problem) {
  return fail(errc::bad_config, "the model does not fit the data: " + engine::reason_of(problem));
}

}  // namespace

result<engine::planning> planning_of(const stage_tables& config, const registries& known,
                                     const engine::model& layers) {
  auto recompute =
      engine::recomputed_layers(engine::layer_names(layers), config.pipeline.recompute);
  if (!recompute) return tl::unexpected(recompute.error());
  const auto copies = tensors_a_parameter(config.optimizer, known.optimizers);
  if (!copies) return tl::unexpected(copies.error());
  const auto cores = std::max(1U, cores_here());
  const auto threads = threads_per_stage(config.pipeline, cores);
  engine::planning how{.schedule = schedule_of(config.pipeline, known.schedules),
                       .stages = config.pipeline.stages,
                       .batch_size = config.train.batch_size,
                       .cores = cores,
                       .threads_per_stage = static_cast<std::uint32_t>(threads),
                       .credits = config.pipeline.credits};
  if (config.pipeline.stages_in == placement::processes)
    how.bytes_per_s =
        opens_port(config.link.transport) ? tcp_bytes_per_s : shared_memory_bytes_per_s;
  how.optimizer_copies = static_cast<double>(*copies) / state_shares_of(config.pipeline);
  how.memory_cap_bytes = static_cast<double>(config.pipeline.memory_mib) * (1 << 20);
  how.on_devices = are_stages_on_gpus(config);
  how.recompute = std::move(*recompute);
  const auto layout = engine::layout_of(how.schedule, how.stages);
  if (!layout) return tl::unexpected(layout.error());
  how.nccl_bytes = nccl_bytes_of_stages(config, config.link, *layout, cards_to_share(config));
  return how;
}

result<engine::batch> first_samples(const engine::dataset& data, std::int64_t count) {
  const auto size = data.size(engine::split::train);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) indices[static_cast<std::size_t>(i)] = i % size;
  auto samples = data.read(engine::split::train, indices);
  if (samples && samples->inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample to profile the layers with could be read");
  return samples;
}

double bytes_of_sample(const engine::batch& samples) {
  return static_cast<double>(samples.inputs.nbytes()) / static_cast<double>(samples.inputs.size(0));
}

namespace {

std::uint32_t stages_at_once(const engine::planning& how) {
  return std::clamp(how.cores / std::max(1U, how.threads_per_stage), 1U, std::max(1U, how.stages));
}

/// Profiles on as many threads at once as stages will run at once, for they share the memory.
result<engine::model_profile> measure_side_by_side(const engine::model_blueprint& blueprint,
                                                   const engine::stage_options& options,
                                                   const engine::planning& how,
                                                   const engine::batch& samples,
                                                   measuring_teller& teller) {
  const auto at_once = stages_at_once(how);
  const engine::profile_bounds within{
      .bytes = actors::free_bytes(engine::read_free_memory()) / at_once,
      .begins = [&teller](std::size_t layer) { teller.begins(layer); }};
  std::vector<std::packaged_task<result<engine::model_profile>()>> tasks;
  for (std::uint32_t i = 0; i < at_once; ++i)
    tasks.emplace_back([&] {
      return engine::profile_model(blueprint, options, samples, profile_repeats, within);
    });
  std::vector<engine::model_profile> profiles;
  try {
    std::vector<std::unique_ptr<engine::work_thread>> threads;
    for (auto& task : tasks) {
      threads.push_back(std::make_unique<engine::work_thread>(
          "profile-" + std::to_string(threads.size()), static_cast<int>(how.threads_per_stage)));
      threads.back()->post([&task] { task(); });
    }
    threads.clear();  // waits
    for (auto& each : tasks) {
      auto profile = each.get_future().get();
      if (!profile) return profile;
      profiles.push_back(std::move(*profile));
    }
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed,
                "the layers cannot be profiled: " + engine::reason_of(problem));
  }
  return engine::mean_of(profiles);
}

/// Sizes of micro-batch to profile, rising: the one that `parts` micro-batches of a batch have, or
/// where that is 0 two to draw a line through. A profile that is saved serves other sizes too, so
/// it has two: the one that is set, and of the others the one further from it.
std::vector<std::int64_t> sizes_to_profile(std::int64_t batch, std::int64_t parts, bool is_saved) {
  const auto small = std::clamp<std::int64_t>(batch / 16, std::min<std::int64_t>(2, batch), batch);
  const auto large = std::max(small, batch / 2);
  std::vector<std::int64_t> sizes{small, large};
  if (parts > 0) {
    const auto set = (batch + parts - 1) / parts;
    if (!is_saved) return {set};
    (set * set < small * large ? sizes.front() : sizes.back()) = set;
  }
  if (sizes.front() == sizes.back()) sizes.pop_back();
  return sizes;
}

/// Fills in how large a sample is.
result<std::vector<engine::model_profile>> measure(const layers_to_measure& what,
                                                   engine::planning& how) {
  const auto options = stage_options_of(what.config.train, what.config.model, what.known);
  if (!options) return tl::unexpected(options.error());
  std::vector<engine::model_profile> profiles;
  for (const auto size :
       sizes_to_profile(what.config.train.batch_size, what.config.pipeline.micro_batches,
                        !what.config.observe.save_profile.empty())) {
    if (auto fits = check_measurable(what, size, engine::read_free_memory()); !fits)
      return tl::unexpected(fits.error());
    measuring_teller teller(what.described, [](const std::string& line) { log::info(line); });
    const auto samples = first_samples(what.data, size);
    if (!samples) return tl::unexpected(samples.error());
    how.sample_bytes = bytes_of_sample(*samples);
    auto profile = measure_side_by_side(what.blueprint, *options, how, *samples, teller);
    if (!profile)
      return tl::unexpected(
          blame_bound(what.config.places, what.config.cluster, size, profile.error()));
    profiles.push_back(std::move(*profile));
  }
  return profiles;
}

/// What each thread reaches at most while all threads of all stages compute.
result<engine::kernels::machine_rates> measure_machine(const engine::planning& how,
                                                       engine::precision type) {
  using engine::kernels::arithmetic;
  try {
    return engine::kernels::measure_rates(
        type == engine::precision::bf16 ? arithmetic::bf16 : arithmetic::f32,
        stages_at_once(how) * std::max(1U, how.threads_per_stage));
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed,
                "the machine's rates cannot be measured: " + engine::reason_of(problem));
  }
}

/// `file`: empty: it is not saved.
result<void> save(const std::vector<engine::model_profile>& profiles, const model_config& model,
                  const engine::planning& how, const std::filesystem::path& file) {
  if (file.empty()) return {};
  const auto rates = measure_machine(how, model.precision);
  if (!rates) return tl::unexpected(rates.error());
  const engine::saved_profile made{.model = model.name,
                                   .batch_size = how.batch_size,
                                   .cores = how.cores,
                                   .threads_per_stage = how.threads_per_stage,
                                   .credits = how.credits,
                                   .bytes_per_s = how.bytes_per_s,
                                   .optimizer_copies = how.optimizer_copies,
                                   .sample_bytes = how.sample_bytes,
                                   .rates = *rates,
                                   .sizes = profiles};
  return engine::save_profile(file, made).map([&] {
    log::info("the profile of the model's layers is in " + file.string());
  });
}

}  // namespace

std::uint32_t planned_microbatches(const pipeline_config& pipeline, const train_config& train,
                                   std::uint32_t microbatches) {
  const auto parts =
      is_norm_synced(pipeline, train) ? logical_replicas_of(pipeline, train) : pipeline.replicas;
  return (microbatches + parts - 1) / parts;
}

result<std::vector<engine::layer_range>> named_slices(const engine::model& layers,
                                                      const pipeline_config& config,
                                                      const setting_places& places,
                                                      const registries& known) {
  using slices = std::vector<engine::layer_range>;
  if (config.partition != partition::cuts)
    return check_slices(layers, config, places, known).map([] { return slices(); });
  return fixed_cuts(layers, config, places, known, {}).map([&](const cut_list& cuts) {
    return engine::slices_between(cuts, layers.size());
  });
}

result<chosen_partition> choose_partition(const layers_to_measure& what) {
  const auto& layers = what.described;
  const auto& config = what.config;
  const auto& known = what.known;
  std::optional<cut_list> cuts;
  if (config.pipeline.partition != partition::automatic) {
    auto fixed =
        fixed_cuts(layers, config.pipeline, config.places, known, what.data.sample_shape());
    if (!fixed) return tl::unexpected(fixed.error());
    cuts = std::move(*fixed);
  }
  const bool open = !cuts || config.pipeline.micro_batches == 0;
  const bool predicts = open || config.observe.predict;
  if (!predicts && config.observe.save_profile.empty())
    return chosen_partition{
        engine::slices_between(*cuts, layers.size()), config.pipeline.micro_batches, {}};

  auto how = planning_of(config, known, layers);
  if (!how) return tl::unexpected(how.error());
  if (auto fits = check_slices(layers, config.pipeline, config.places, known); !fits)
    return tl::unexpected(fits.error());
  const auto profiles = measure(what, *how);
  if (!profiles) return tl::unexpected(profiles.error());
  if (auto saved = save(*profiles, config.model, *how, config.observe.save_profile); !saved)
    return tl::unexpected(saved.error());
  if (!predicts)
    return chosen_partition{
        engine::slices_between(*cuts, layers.size()), config.pipeline.micro_batches, {}};
  const auto costs = engine::cost_model::fit(*profiles);
  if (!costs) return tl::unexpected(costs.error());
  // A step of one replica, which has its share of the batch; summing over replicas is not counted.
  const auto set = config.pipeline.micro_batches;
  const auto replicas = config.pipeline.replicas;
  auto of_replica = *how;
  of_replica.batch_size = (how->batch_size + replicas - 1) / replicas;
  const auto numbers = set > 0
                           ? std::vector{planned_microbatches(config.pipeline, config.train, set)}
                           : engine::microbatches_to_try(of_replica);
  auto made = engine::plan_microbatches(*costs, of_replica, numbers, cuts ? &*cuts : nullptr);
  if (!made) return tl::unexpected(made.error());
  return chosen_partition{engine::slices_between(made->cuts, layers.size()),
                          set > 0 ? set : made->microbatches, *made};
}

}  // namespace troupe::cluster
