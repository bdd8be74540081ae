#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <vector>

#include "actors/interfaces.hpp"
#include "engine/data/dataset.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::actors {

/// Spawns the actor that hands inputs to the stage of the model's first slice, its chunk 0, and
/// labels to that of its last slice, `last_chunk` (perhaps the same stage), at most `credits` of
/// each ahead of their use. `logs`: batches are kept until `forget_fed`, for a stage that takes a
/// lost one's place. It is declared cheap (see declare_cheap): credits of stages of other processes
/// are handled where they arrive.
[[nodiscard]] feeder_actor spawn_feeder(caf::actor_system& system, stage_actor first,
                                        stage_actor last, std::uint32_t last_chunk,
                                        std::uint32_t credits, bool logs);

/// Cuts a batch into `microbatches` as even as can be, the larger ones first, and shares them out
/// to `feeders`, one per replica of the pipeline (see engine::share_of_batch). At most one
/// micro-batch a sample. Returns how many they are: 0 for an empty batch. `grouped`: logical
/// replicas, where batch norm is synchronized over them; a training step is then fed by groups
/// (engine::norm_groups), whose members are joined. 0: it is not.
std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const std::vector<feeder_actor>& feeders,
                   engine::step_kind kind = engine::step_kind::training, std::uint32_t grouped = 0);

/// What a replica is fed with in a step whose batch norms are synchronized over `logical` replicas:
/// the micro-batches of each of its groups (engine::norm_groups), one after the other.
[[nodiscard]] std::vector<engine::batch> batches_of_groups(const std::vector<engine::batch>& parts,
                                                           std::uint32_t replica,
                                                           std::uint32_t replicas,
                                                           std::uint32_t logical);

}  // namespace troupe::actors
