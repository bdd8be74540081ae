#pragma once

#include <caf/actor_system.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {
struct stage_options;
}  // namespace troupe::engine

namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

namespace troupe::actors {

class progress_board;

/// A model and the data that it learns from.
struct learner {
  engine::model layers;
  std::shared_ptr<const engine::dataset> data;
  std::vector<std::string> by_rows = {};  ///< Parameters whose gradients are sparse.
};

/// Makes what a worker's order asks for. Errors: bad_config, bad_data.
using learner_factory = std::function<result<learner>(const build_worker&)>;

/// Spawns a worker with a thread of its own, which opens the data, builds the model and joins the
/// parameter server first: shares wait for that, and tell if it failed. Its gradients lie in
/// `memory` (null: anywhere); `progress` watches its thread (null: nobody does). `how`: its
/// arithmetic, with the loss and the metrics that the order names.
[[nodiscard]] worker_actor spawn_worker(caf::actor_system& system, std::shared_ptr<requester> ask,
                                        const learner_factory& make, const build_worker& order,
                                        std::shared_ptr<messages::shared_memory> memory,
                                        std::shared_ptr<progress_board> progress,
                                        const engine::stage_options& how);

}  // namespace troupe::actors
