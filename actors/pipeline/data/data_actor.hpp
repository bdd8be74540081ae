#pragma once

#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/interfaces.hpp"
#include "engine/data/dataset.hpp"

namespace troupe::actors {

/// Spawns the actor that reads batches of `source` for the feeders of a pipeline's replicas; empty:
/// for some of its own, once `connect_data` has said for whom. Reading happens on a thread of its
/// own, so that the next batch is read while the last one is computed. `grouped`: see `feed`;
/// `connect_data` says it too. `before`: what others have skipped that have read them in this run.
[[nodiscard]] data_actor spawn_data(caf::actor_system& system,
                                    std::shared_ptr<const engine::dataset> source,
                                    std::vector<feeder_actor> feeders = {},
                                    std::uint32_t grouped = 0, engine::skipped_samples before = {});

}  // namespace troupe::actors
