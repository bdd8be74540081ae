#pragma once

#include <caf/actor_system.hpp>

#include <vector>

#include "actors/interfaces.hpp"
#include "engine/parameter_server/push.hpp"

namespace troupe::actors {

/// What a parameter server is to be.
struct coordinator_parts {
  std::vector<shard_actor> shards;  ///< New ones, wherever they live; at least one.
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;         ///< See engine::server_rules.
  std::uint32_t expected_workers = 1;  ///< As above.
  param_version begin = {};            ///< That of the shards, which was given with their values.
};

/// Spawns the coordinator of these shards and connects them to it; workers that join wait for that.
/// A worker whose presence ends leaves. When a shard is gone, so is the parameter server: who
/// joins then gets peer_lost, and members have requests and a monitor of their own at every shard.
/// It is declared cheap (see declare_cheap).
[[nodiscard]] coordinator_actor spawn_coordinator(caf::actor_system& system,
                                                  coordinator_parts parts);

}  // namespace troupe::actors
