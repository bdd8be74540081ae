#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/stage/state/stage_state.hpp"

/// What a stage sends to its other replicas for the sums of a step, and sends again where one of
/// them is replaced: a part of the stage's shell (stage_state.hpp).
namespace troupe::actors {

/// Sends it, and remembers a part, or what belongs to a step as a whole, where its receiver may be
/// replaced.
void send_to_replicas(stage_pointer self, sent_to_replicas what);

/// Where its step may be done again. An own sum is remembered whether or not somebody is sent it
/// now: one that does the step again may ask for it when the step is over.
void remember(stage_state& state, sent_to_replicas what);

/// The sum of one of its own buckets; null: it is not remembered.
[[nodiscard]] const sent_to_replicas* remembered_sum(const stage_state& state,
                                                     const engine::step_key& key,
                                                     std::size_t bucket);

/// Sends all others the values of the parameters that this replica has updated in a step.
void send_parameters(stage_pointer self, const engine::step_key& key);

/// A stage takes the place of that replica and does all steps from `from` on again: it is sent
/// what it is to add up. Sums follow its own parts.
void replace_replica(stage_pointer self, std::uint32_t rank, const stage_actor& by,
                     const engine::step_key& from);

/// No step before this one is done again.
void forget_sums_before(stage_state& state, const engine::step_key& first);

}  // namespace troupe::actors
