#pragma once

#include <caf/actor_system.hpp>

#include <memory>
#include <string>

#include "actors/interfaces.hpp"
#include "engine/model/activity.hpp"
#include "engine/parameter_server/parameter_store.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::actors {

/// What a shard is made of.
struct shard_parts {
  std::string name;                                ///< "shard-1", for errors and its thread.
  std::unique_ptr<engine::parameter_store> store;  ///< Its parameters and their optimizer.
  int threads = 1;                                 ///< Intra-op threads of its work thread.
  std::shared_ptr<engine::activity> doing = {};    ///< What that thread publishes; null: nothing.
  /// Where what its updates and reads make is to lie (see lendable_tensors); null: anywhere.
  std::shared_ptr<messages::shared_memory> memory = {};
};

/// Spawns a shard with a work thread of its own, on which everything that reads or writes its
/// parameters runs. When its coordinator is gone it fails what waits, and whatever comes, with
/// peer_lost.
[[nodiscard]] shard_actor spawn_shard(caf::actor_system& system, shard_parts parts);

}  // namespace troupe::actors
