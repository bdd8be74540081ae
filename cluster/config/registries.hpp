#pragma once

#include <memory>

#include "engine/blueprint/model_registry.hpp"
#include "engine/data/data_registry.hpp"
#include "engine/model/loss.hpp"
#include "engine/schedule/generators.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::engine {
class collective_maker;
}  // namespace troupe::engine

namespace troupe::cluster {

/// Everything that a user can name in a run's configuration. A program starts with the built-in
/// registries, adds its own entries, and passes all of it in; its stage processes run the same
/// program, and so know the same names.
struct registries {
  engine::model_registry models = {};
  engine::data_registry data = engine::built_in_data();
  engine::loss_registry losses = engine::built_in_losses();
  engine::schedule_registry schedules = engine::built_in_schedules();
  optimizers::registry optimizers = optimizers::built_in();
  /// What replicas of a stage may sum by, instead of links; null: NCCL, between GPUs. See
  /// engine::choose_sum.
  std::shared_ptr<const engine::collective_maker> collectives = {};
};

}  // namespace troupe::cluster
