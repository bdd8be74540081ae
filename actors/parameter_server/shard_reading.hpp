#pragma once

#include <caf/result.hpp>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/shard_state.hpp"
#include "engine/parameter_server/batch.hpp"

/// How a shard answers with values: its work thread reads them behind the updates under way. For
/// the shard's actor alone.
namespace troupe::actors {

/// Answers a push with the values, or as many as one message holds of them.
void answer_values(shard_state& state, unanswered_push& to, param_version version,
                   const engine::tensor_batch& values);

/// Has values read, after the updates under way, for an answer.
void read_for(shard_pointer self, unanswered_read answer, std::vector<std::uint32_t> wanted,
              std::optional<param_version> newer_than);

caf::result<parameters_pulled> on_pull(shard_pointer self, const pull_parameters& order);
caf::result<shard_state_piece> on_read_state(shard_pointer self, const read_shard_state& order);

/// What the work thread has read.
void on_values(shard_pointer self, const values_ready& ready);

}  // namespace troupe::actors
