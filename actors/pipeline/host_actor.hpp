#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/remote/progress_board.hpp"
#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {

/// What is asked of a model: how many classes, the seed of its weights, and options of its own.
struct model_order {
  std::int64_t classes = 0;
  std::uint64_t seed = 0;
  std::map<std::string, double> options = {};
};

/// Makes a whole model with weights drawn from its order's seed. Errors: bad_config.
using model_builder = std::function<result<engine::model>(const model_order&)>;

/// The models a node can build, by name: a value that `main` fills and passes in.
using model_registry = std::map<std::string, model_builder>;

/// Makes the model of that name. Errors: bad_config, which lists the known names where it is not
/// one of them.
[[nodiscard]] result<engine::model> build_model(const model_registry& models,
                                                const std::string& name, const model_order& order);

/// What a host needs to build stages.
struct host_parts {
  model_registry models;
  optimizers::registry optimizers;
  /// Called once, on a scheduler thread, when the trainer says `shut_down`; the stages have been
  /// told to end by then.
  std::function<void()> on_shut_down;
  /// Told of the stages' threads; null: nobody is.
  std::shared_ptr<progress_board> progress = {};
};

/// Spawns the actor that builds stages on this node when the trainer asks for them.
[[nodiscard]] host_actor spawn_host(caf::actor_system& system, host_parts parts);

/// Builds a stage and its optimizer from an order. Errors: bad_config.
[[nodiscard]] result<stage_actor> build(caf::actor_system& system, const build_stage& order,
                                        const host_parts& parts);

}  // namespace troupe::actors
