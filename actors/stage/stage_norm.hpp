#pragma once

#include <memory>
#include <optional>

#include "actors/stage/stage_state.hpp"
#include "engine/stage/group_pass.hpp"

/// Batch norm that is synchronized over replicas: an action on a group waits, on the work thread,
/// for sums that the stage's actor makes with the same stage of the other replicas by what
/// `engine::norm_sum_core` says (docs/replicas.md).
namespace troupe::actors {

/// An action on the members of a group.
struct group_action {
  engine::stage_group group;
  std::shared_ptr<engine::norm_lanes> lanes;
  engine::norm_exchange exchange;
  std::shared_ptr<double> waited_s;  // for other replicas, by the exchange
};

/// Once the stage is connected. Errors: bad_config for a stage that is not on a CPU.
[[nodiscard]] result<void> join_norms(stage_pointer self, const replica_group& group);

/// Which micro-batches go together in a step; nothing: each goes alone. Errors: bad_config for
/// shares that do not fit the stage's replicas.
[[nodiscard]] result<std::optional<announced_groups>> groups_of(const stage_state& state,
                                                                const run_stage& order);

/// Nothing: the action is one on a single micro-batch.
[[nodiscard]] std::optional<group_action> group_action_of(stage_pointer self,
                                                          const announced_step& step,
                                                          const engine::start_action& what,
                                                          const engine::work_item& item);

void on_norm_given(stage_pointer self, const norm_given& what);
void on_replica_norm(stage_pointer self, const replica_norm& from);

/// A replica is gone. Errors: peer_lost where a sum waits for it.
[[nodiscard]] result<void> lose_norms(stage_pointer self, std::uint32_t rank);

/// The steps under way cannot succeed any more: whoever waits for a sum does so no longer.
void give_up_norms(norm_state& norm, const error& why);

}  // namespace troupe::actors
