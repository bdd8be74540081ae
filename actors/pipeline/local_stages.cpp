#include "actors/pipeline/local_stages.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <iterator>
#include <optional>

#include "actors/messages/mirror.hpp"
#include "actors/optimizer/optimizer_actor.hpp"
#include "actors/stage/stage_actor.hpp"
#include "engine/model/model.hpp"

namespace troupe::actors {
namespace {

result<std::vector<model_slice>> cut(engine::model layers, const std::vector<std::size_t>& cuts,
                                     const std::vector<bool>& recompute) {
  std::vector<model_slice> slices;
  for (const auto range : engine::slices_between(cuts, layers.size())) {
    if (range.first >= range.last || range.last > layers.size())
      return fail(errc::bad_config, "cuts must rise from 1 to below the number of layers, " +
                                        std::to_string(layers.size()));
    auto slice = take_slice(layers, range, recompute);
    if (!slice) return tl::unexpected(slice.error());
    slices.push_back(std::move(*slice));
  }
  return slices;
}

std::vector<const engine::model*> models_of(
    const std::vector<std::unique_ptr<engine::stage_module>>& modules) {
  std::vector<const engine::model*> all;
  for (const auto& module : modules) all.push_back(&module->layers());
  return all;
}

std::vector<std::unique_ptr<engine::stage_module>> modules_for(
    stage_blueprint& blueprint, const std::shared_ptr<const engine::device_streams>& streams) {
  std::vector<std::unique_ptr<engine::stage_module>> modules;
  for (auto& [layers, is_first, is_last, recompute] : blueprint.slices) {
    auto place = blueprint.options;
    place.idle_cores = place.idle_cores && blueprint.threads == 1 && place.device.is_cpu();
    place.is_first = is_first;
    place.is_last = is_last;
    place.recompute = std::move(recompute);
    place.streams = streams;
    engine::to_device(layers, place.device);
    modules.push_back(std::make_unique<engine::stage_module>(std::move(layers), place));
  }
  return modules;
}

/// What a keeper needs to make the stage's updates again; nothing: it would not get the same bits.
std::optional<update_terms> repeatable_terms(const stage_blueprint& of,
                                             const optimizers::optimizer& by,
                                             const optimizers::options& options) {
  if (!by.same_on_every_cpu || !of.options.device.is_cpu()) return std::nullopt;
  return update_terms{.optimizer = by.name, .options = options, .groups = of.rules.groups};
}

/// What one of the stage's threads is at, which `progress` is told.
std::shared_ptr<engine::activity> watched(const stage_blueprint& of, const char* thread,
                                          const std::vector<const engine::model*>& chunks = {}) {
  auto made = std::make_shared<engine::activity>(chunks);
  if (of.progress) of.progress->watch(thread, made);
  return made;
}

}  // namespace

model_slice slice_of(engine::model layers, engine::layer_range which, std::size_t count,
                     const std::vector<bool>& recompute) {
  const auto [first, last] = which;
  model_slice slice{.layers = std::move(layers), .is_first = first == 0, .is_last = last == count};
  for (auto i = first; i < last && i < recompute.size(); ++i)
    slice.recompute.push_back(recompute[i]);
  return slice;
}

result<model_slice> take_slice(engine::model& whole, engine::layer_range which,
                               const std::vector<bool>& recompute) {
  return engine::take_layers(whole, which).map([&](engine::model layers) {
    return slice_of(std::move(layers), which, whole.size(), recompute);
  });
}

result<stage_actor> spawn_stage_with_optimizer(caf::actor_system& system, stage_blueprint blueprint,
                                               const optimizers::registry& known) {
  auto optimizer = known.find(blueprint.optimizer);
  if (!optimizer) return tl::unexpected(optimizer.error());
  auto options = optimizers::complete(*optimizer, blueprint.optimizer_options);
  if (!options) return tl::unexpected(options.error());
  auto repeatable = repeatable_terms(blueprint, *optimizer, *options);
  const auto streams = std::make_shared<const engine::device_streams>(blueprint.options.device);
  const auto on_device = streams->computing();
  auto modules = modules_for(blueprint, streams);
  std::vector<engine::named_tensor> parameters;
  for (const auto& module : modules)
    std::ranges::copy(module->parameters(), std::back_inserter(parameters));
  const auto arithmetic = watched(blueprint, "arithmetic", models_of(modules));
  const auto updates = watched(blueprint, "optimizer");
  const auto sums = watched(blueprint, "sum over replicas");
  const auto owner = spawn_optimizer(
      system, {blueprint.name, std::move(parameters), std::move(*optimizer), std::move(*options),
               blueprint.threads, blueprint.rules.groups, updates, streams, blueprint.memory});
  if (!owner) return tl::unexpected(owner.error());
  auto stage = spawn_stage(system, {.name = blueprint.name,
                                    .modules = std::move(modules),
                                    .optimizer = *owner,
                                    .threads = blueprint.threads,
                                    .clip_value = blueprint.rules.clip_value,
                                    .accumulate = blueprint.rules.accumulate,
                                    .doing = arithmetic,
                                    .summing = sums,
                                    .libraries = with_usual(std::move(blueprint.libraries)),
                                    .begun = std::move(blueprint.begun),
                                    .memory = std::move(blueprint.memory),
                                    .repeatable = std::move(repeatable),
                                    .incarnation = blueprint.incarnation});
  caf::actor_cast<caf::strong_actor_ptr>(stage)->get()->attach_functor(
      [owner = *owner] { caf::anon_send_exit(owner, caf::exit_reason::user_shutdown); });
  return stage;
}

result<local_stages> local_stages::spawn(caf::actor_system& system, engine::model layers,
                                         const std::vector<std::size_t>& cuts,
                                         const stage_blueprint& like,
                                         const optimizers::registry& known,
                                         const engine::schedule_choice& schedule) {
  auto slices = cut(std::move(layers), cuts, like.options.recompute);
  if (!slices) return tl::unexpected(slices.error());
  const auto layout = engine::layout_for(schedule, static_cast<std::uint32_t>(slices->size()));
  if (!layout) return tl::unexpected(layout.error());
  local_stages spawned;
  for (std::uint32_t s = 0; s < layout->stages; ++s) {
    stage_blueprint stage{.name = "stage-" + std::to_string(s),
                          .slices = {},
                          .options = like.options,
                          .optimizer = like.optimizer,
                          .optimizer_options = like.optimizer_options,
                          .threads = like.threads,
                          .rules = like.rules,
                          .libraries = like.libraries};
    for (std::uint32_t chunk = 0; chunk < layout->chunks; ++chunk)
      stage.slices.push_back(std::move((*slices)[layout->virtual_stage_of({s, chunk})]));
    auto handle = spawn_stage_with_optimizer(system, std::move(stage), known);
    if (!handle) return tl::unexpected(handle.error());
    spawned.stages_.push_back(*handle);
  }
  return spawned;
}

local_stages::~local_stages() {
  for (const auto& stage : stages_) caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
}

}  // namespace troupe::actors
