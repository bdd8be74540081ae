#include "actors/pipeline/local_stages.hpp"

#include <caf/send.hpp>
#include <memory>

#include "actors/optimizer/optimizer_actor.hpp"
#include "actors/stage/stage_actor.hpp"

namespace troupe::actors {

result<stage_actor> spawn_stage_with_optimizer(caf::actor_system& system, stage_blueprint blueprint,
                                               const optimizers::registry& known) {
  auto optimizer = known.find(blueprint.optimizer);
  if (!optimizer) return tl::unexpected(optimizer.error());
  auto options = optimizers::complete(*optimizer, blueprint.optimizer_options);
  if (!options) return tl::unexpected(options.error());

  auto module =
      std::make_unique<engine::stage_module>(std::move(blueprint.layers), blueprint.options);
  const auto owner =
      spawn_optimizer(system, {blueprint.name, module->parameters(), std::move(*optimizer),
                               std::move(*options), blueprint.threads});
  auto stage = spawn_stage(system, {blueprint.name, std::move(module), owner, blueprint.threads});
  caf::actor_cast<caf::strong_actor_ptr>(stage)->get()->attach_functor(
      [owner] { caf::anon_send_exit(owner, caf::exit_reason::user_shutdown); });
  return stage;
}

result<local_stages> local_stages::spawn(caf::actor_system& system, engine::model layers,
                                         const std::vector<std::size_t>& cuts,
                                         const stage_blueprint& like,
                                         const optimizers::registry& known) {
  local_stages spawned;
  auto bounds = cuts;
  bounds.push_back(layers.size());
  std::size_t first = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (bounds[i] <= first || bounds[i] > layers.size())
      return fail(errc::bad_config, "cuts must rise from 1 to below the number of layers, " +
                                        std::to_string(layers.size()));
    stage_blueprint stage{.name = "stage-" + std::to_string(i),
                          .layers = {},
                          .options = like.options,
                          .optimizer = like.optimizer,
                          .optimizer_options = like.optimizer_options,
                          .threads = like.threads};
    stage.options.recompute.clear();
    for (; first < bounds[i]; ++first) {
      stage.layers.push_back(std::move(layers[first]));
      const auto& recompute = like.options.recompute;
      stage.options.recompute.push_back(first < recompute.size() && recompute[first]);
    }
    stage.options.is_first = i == 0;
    stage.options.is_last = i + 1 == bounds.size();
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
