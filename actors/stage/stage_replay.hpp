#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/stage/state/stage_state.hpp"

/// What a stage does when a neighbour is lost and another stage repeats that one's last steps, and
/// when its feeder is lost: a part of the stage's shell (stage_state.hpp).
namespace troupe::actors {

/// Whether the message under way comes from a stage or a feeder that was lost and replaced.
[[nodiscard]] bool has_departed(stage_pointer self);

/// Whether what arrives was used, and comes once more from a stage that does a step again.
[[nodiscard]] bool is_repeat(stage_pointer self, engine::edge on, const microbatch_key& key);

/// Sends the gradient of a tied weight, and remembers it where its receiver may be replaced.
void send_tie(stage_pointer self, const sent_tie& what);

/// A step was decided: what no stage can need again is forgotten.
void forget_decided(stage_pointer self, const engine::step_key& key);

/// All stages have done the steps before this one: no stage can need the evaluations among them.
void forget_evaluations(stage_pointer self, const engine::step_key& done_before);

/// Counts what this process computes again.
void count_action(stage_pointer self, announced_step& step, const engine::action& what);

[[nodiscard]] caf::result<acknowledged> on_replace_neighbour(stage_pointer self,
                                                             const replace_neighbour& what);

[[nodiscard]] caf::result<acknowledged> on_replace_feeder(stage_pointer self,
                                                          const replace_feeder& what);

}  // namespace troupe::actors
