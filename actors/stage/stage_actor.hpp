#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/recovery/action_record.hpp"
#include "actors/stage/edges/device_libraries.hpp"
#include "engine/model/activity.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

namespace troupe::actors {

/// What a stage is made of.
struct stage_parts {
  std::string name;  ///< "stage-1", for errors and thread names.
  std::vector<std::unique_ptr<engine::stage_module>> modules;  ///< Its arithmetic, one a chunk.
  optimizer_actor optimizer;  ///< Owner of the modules' parameters, chunk by chunk.
  int threads = 1;            ///< Intra-op threads of its work thread.
  double clip_value = 0;      ///< See update_rules.
  std::uint32_t accumulate = 1;
  std::shared_ptr<engine::activity> doing;    ///< What its work thread publishes; not null.
  std::shared_ptr<engine::activity> summing;  ///< The same of its sums over replicas.
  device_libraries libraries;                 ///< None of them null.
  /// Of its process, for all stages that it has had; null: of this one alone.
  std::shared_ptr<action_record> begun = {};
  /// Its node's, for gradients that replicas in other processes read (see node::memory); null:
  /// they are sent copies.
  std::shared_ptr<messages::shared_memory> memory = {};
  /// Of its optimizer, where a keeper on any CPU may repeat updates; nullopt: none may.
  std::optional<update_terms> repeatable = {};
  std::uint32_t incarnation = 0;  ///< See build_stage.
};

/// Spawns a stage with a work thread of its own. It ends when told to (exit message), after the
/// action that is running.
[[nodiscard]] stage_actor spawn_stage(caf::actor_system& system, stage_parts parts);

}  // namespace troupe::actors
