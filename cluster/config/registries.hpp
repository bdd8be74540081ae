#pragma once

#include <caf/fwd.hpp>
#include <functional>
#include <memory>

#include "actors/stage/edges/device_libraries.hpp"
#include "engine/blueprint/model_registry.hpp"
#include "engine/data/data_registry.hpp"
#include "engine/model/loss.hpp"
#include "engine/model/metric.hpp"
#include "engine/schedule/generators.hpp"
#include "messages/base/named_values.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {
class message_registry;
}  // namespace troupe::actors

namespace troupe::cluster {

/// Adds messages of a program's own to those of Troupe, under names that Troupe does not have:
/// `[](auto& types) { types.add(my_messages{}); }` (actors/messages/declaration.hpp). Called once
/// for each node.
using message_adder = std::function<void(actors::message_registry&)>;

/// Spawns an actor on a node, which ends with the node.
using actor_maker = std::function<caf::strong_actor_ptr(caf::actor_system&)>;

/// Everything that a user can name in a run's configuration. A program starts with the built-in
/// registries, adds its own entries, and passes all of it in; its stage processes run the same
/// program, and so know the same names.
struct registries {
  engine::model_registry models = {};
  engine::data_registry data = engine::built_in_data();
  engine::loss_registry losses = engine::built_in_losses();
  /// What evaluations report: all of them, in this order.
  engine::metric_registry metrics = engine::built_in_metrics();
  engine::schedule_registry schedules = engine::built_in_schedules();
  optimizers::registry optimizers = optimizers::built_in();
  message_adder own_messages = {};  ///< Left out: the program has none.
  /// One of each is on every node but the trainer's, which finds them there by their names: see
  /// application::ask_nodes. Not "host", which is Troupe's.
  named_values<actor_maker> own_actors = {};
  /// What stages may use between processes instead of links.
  actors::device_libraries libraries = {};
};

}  // namespace troupe::cluster
