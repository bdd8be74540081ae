#pragma once

#include <caf/actor_system.hpp>

#include <memory>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/model/activity.hpp"
#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

namespace troupe::actors {

/// What an optimizer actor owns: the only one who writes these parameters.
struct optimizer_parts {
  std::string name;                              ///< "stage-1", for errors.
  std::vector<engine::named_tensor> parameters;  ///< In the order of the gradients.
  optimizers::optimizer optimizer;
  optimizers::options options;                   ///< Complete (see optimizers::complete).
  int threads = 1;                               ///< Intra-op threads of its thread.
  std::vector<std::string> groups = {};          ///< See optimizers::parse_group.
  std::shared_ptr<engine::activity> doing = {};  ///< What its thread publishes; null: nothing.
  /// Of the stage: updates go to the stream of its arithmetic. Null: the parameters are the CPU's.
  std::shared_ptr<const engine::device_streams> streams = {};
  /// Its node's, for copies of the state that other processes keep (see node::memory); null: they
  /// get copies of those.
  std::shared_ptr<messages::shared_memory> memory = {};
};

/// Spawns an optimizer on a thread of its own: an update never holds up a scheduler. Updates are in
/// place, in order, and only while the stage waits for them. Errors: bad_config naming a parameter
/// group.
[[nodiscard]] result<optimizer_actor> spawn_optimizer(caf::actor_system& system,
                                                      optimizer_parts parts);

}  // namespace troupe::actors
