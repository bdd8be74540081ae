#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "engine/collective/norm/norm_groups.hpp"
#include "engine/collective/norm/norm_sum_core.hpp"
#include "engine/model/activity.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/stage/group_pass.hpp"
#include "engine/stage/norm_lanes.hpp"
#include "engine/stage/norm_meeting.hpp"
#include "engine/step/step_key.hpp"

/// Batch norm that is synchronized over replicas: an action on a group waits, on the work thread,
/// for sums that the stage's actor makes with the same stage of the other replicas by what
/// `engine::norm_sum_core` says (docs/replicas.md).
namespace troupe::actors {

/// Which micro-batches of a step batch norm normalizes together, and the samples of each in the
/// whole batch.
struct announced_groups {
  engine::norm_groups of;
  std::vector<std::int64_t> samples;
};

/// An action on the members of a group.
struct group_action {
  engine::stage_group group;
  std::shared_ptr<engine::norm_lanes> lanes;
  engine::norm_exchange exchange;
  std::shared_ptr<double> waited_s;  // for other replicas, by the exchange
};

/// What an exchange is made with: the stage's actor, at this connection, and what its work thread
/// is at.
struct exchange_terms {
  stage_actor with;
  std::uint32_t connection = 0;
  std::shared_ptr<engine::activity> doing;
  engine::work_item item;
};

/// A stage's part in it. Its actor's, but for what `action_of` gives to the work thread.
class stage_norm {
 public:
  stage_norm() = default;
  /// `lane_threads`: intra-op threads of a lane.
  stage_norm(const replica_group& group, const std::string& stage, int lane_threads);

  /// Which micro-batches go together in a step; nothing: each goes alone. Errors: bad_config for
  /// shares that do not fit the stage's replicas.
  [[nodiscard]] result<std::optional<announced_groups>> groups_of(const run_stage& order) const;

  /// An action of a step with such groups.
  [[nodiscard]] group_action action_of(const announced_groups& groups, const engine::step_key& step,
                                       const engine::action& what,
                                       const exchange_terms& terms) const;

  /// Gives the sum to the thread that waits for it.
  void answer(engine::norm_part sum) { meeting_->answer(std::move(sum)); }

  /// The steps under way cannot succeed any more: ends all waits for sums.
  void give_up(const error& why);

  engine::norm_sum_core core;

 private:
  bool synced_ = false;
  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 1;
  std::uint32_t logical_ = 1;                      // of each rank
  std::shared_ptr<engine::norm_meeting> meeting_;  // null: there are no other replicas
  std::shared_ptr<engine::norm_lanes> lanes_;
};

/// For messages.
[[nodiscard]] at::Tensor to_tensor(const engine::norm_part& part);  // [n] f64
/// Errors: bad_frame for what is no list of numbers.
[[nodiscard]] result<engine::norm_part> part_of(const replica_norm& from);

}  // namespace troupe::actors
