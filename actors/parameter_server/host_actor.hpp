#pragma once

#include <caf/actor_system.hpp>

#include <functional>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/parameter_server/worker_actor.hpp"
#include "engine/model/loss.hpp"
#include "engine/model/metric.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {

/// What a node of a parameter server's run can build.
struct server_host_parts {
  learner_factory make_learner;
  optimizers::registry optimizers;
  std::shared_ptr<messages::shared_memory> memory;  ///< The node's, of tensors that are sent.
  /// Called once, on a scheduler thread, at `shut_down`; the actors have been told to end by then.
  std::function<void(const std::string& failure)> on_shut_down;
  /// Told of the shards' and workers' threads; null: nobody is.
  std::shared_ptr<progress_board> progress = {};
  engine::loss_registry losses = {};
  engine::metric_registry metrics = {};
};

/// Spawns the actor that builds shards, coordinators and workers on this node when the driver asks.
[[nodiscard]] server_host_actor spawn_server_host(caf::actor_system& system,
                                                  server_host_parts parts);

/// Builds a shard from an order, of these values for its parameters, in their order, and what
/// follows them as its optimizer's state. Errors: bad_config; bad_frame naming a value that is
/// missing or of another name, shape or dtype; bad_data for state that does not fit.
[[nodiscard]] result<shard_actor> build(caf::actor_system& system, const build_shard& order,
                                        const std::vector<engine::named_tensor>& values,
                                        const optimizers::registry& known,
                                        std::shared_ptr<messages::shared_memory> memory,
                                        const std::shared_ptr<progress_board>& progress = {});

}  // namespace troupe::actors
