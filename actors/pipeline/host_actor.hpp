#pragma once

#include <caf/actor_system.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/recovery/action_record.hpp"
#include "actors/recovery/kept_stages.hpp"
#include "actors/remote/progress_board.hpp"
#include "actors/stage/edges/device_libraries.hpp"
#include "engine/blueprint/model_registry.hpp"
#include "engine/data/data_registry.hpp"
#include "engine/model/loss.hpp"
#include "engine/model/metric.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

namespace troupe::actors {

/// What a host needs to build stages.
struct host_parts {
  engine::model_registry models;
  optimizers::registry optimizers;
  /// Called once, on a scheduler thread, when the trainer says `shut_down`; the stages have been
  /// told to end by then.
  std::function<void(const std::string& failure)> on_shut_down;
  /// Told of the stages' threads; null: nobody is.
  std::shared_ptr<progress_board> progress = {};
  engine::loss_registry losses = {};
  engine::metric_registry metrics = {};
  engine::data_registry data = {};
  device_libraries libraries = {};
  std::shared_ptr<action_record> begun = std::make_shared<action_record>();  ///< See stage_parts.
  std::shared_ptr<messages::shared_memory> memory = {};                      ///< See stage_parts.
  std::vector<std::string> interfaces = {};  ///< As of interfaces_told.
  /// Has the node listen elsewhere, as of listen_there, and gives the new address; may wait. Empty:
  /// it may not. Errors: address_unavailable, io_failed without descriptors.
  using move_door = std::function<result<std::string>(const std::string& wanted)>;
  move_door listen = {};
  /// What this node keeps for others (see open_keeper, note_step).
  std::shared_ptr<kept_stages> kept = std::make_shared<kept_stages>();
};

/// Spawns the actor that builds stages and opens the data on this node when the trainer asks for
/// it.
[[nodiscard]] host_actor spawn_host(caf::actor_system& system, host_parts parts);

/// Builds a stage and its optimizer from an order. Errors: bad_config.
[[nodiscard]] result<stage_actor> build(caf::actor_system& system, const build_stage& order,
                                        const host_parts& parts);

}  // namespace troupe::actors
