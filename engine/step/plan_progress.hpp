#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/step/proved_plan.hpp"

namespace troupe::engine {

/// How closely a stage follows its plan.
enum class execution : std::uint8_t {
  ready,    ///< The best action that can start; the plan is a hint.
  planned,  ///< The plan's next action, whatever it waits for.
};

/// The progress of one stage through its plan: which actions have started and which may be next. A
/// pure value type.
///
/// Of the actions that can start, the first in the plan is the best: a stage leaves the plan's
/// order only while it waits for an input. Four rules say what may run before its turn.
/// - Micro-batches stay in order within a chunk, among F, among I and B, and among W and B: so each
///   sum is made in one order whatever the timing.
/// - A forward runs early only in memory that the plan itself never needs. So memory never keeps
///   the plan's next action from starting, and a stage can always fall back on its plan.
/// - A whole backward does not run before a forward whose turn comes first: it would delay that
///   forward, and with it the stages after it, for long.
/// - A weight gradient does not run early: it would delay what arrives a moment later. The gaps of
///   a stage are filled with parts of it, see weight_queue.
/// docs/schedules.md says what each rule gains and what else was tried, and proves that no stage
/// waits for ever.
class plan_progress {
 public:
  /// `steps` is not null.
  explicit plan_progress(shared_plan steps);

  /// The action to start now; nullopt if none can. `can_start` says what the plan does not know:
  /// whether an action's inputs are there.
  [[nodiscard]] std::optional<action> best(const std::function<bool(const action&)>& can_start,
                                           execution how = execution::ready) const;

  /// The action that `best` gave is done, as far as the next one depends on it.
  void start(const action& what);

  /// How many micro-batches of a chunk have had their forward, or the gradient of their input,
  /// started: the first ones, for they stay in order.
  [[nodiscard]] std::size_t forwards_started(std::uint32_t chunk) const {
    return chunks_[chunk].forwards.started;
  }
  [[nodiscard]] std::size_t gradients_started(std::uint32_t chunk) const {
    return chunks_[chunk].gradients.started;
  }

  /// The plan's next action, which the stage waits for when it can start none. The plan must not be
  /// complete.
  [[nodiscard]] const action& next() const { return steps_->actions()[next_]; }
  [[nodiscard]] bool complete() const noexcept { return next_ == steps_->actions().size(); }

 private:
  /// How far a chunk's actions of one kind are.
  struct lane {
    const std::vector<std::size_t>* places;  // of the shared plan
    std::size_t started = 0;

    [[nodiscard]] bool empty() const noexcept { return started == places->size(); }
    [[nodiscard]] std::size_t front() const { return (*places)[started]; }
  };
  struct chunk_lanes {
    lane forwards, gradients, weights;  // F; I and B; W
    std::size_t complete = 0;           // micro-batches whose W or B has started
  };

  [[nodiscard]] lane& lane_of(const action& what);
  [[nodiscard]] bool in_turn(const action& what, std::size_t place) const;
  [[nodiscard]] bool has_room(std::size_t place) const;

  shared_plan steps_;
  std::vector<chunk_lanes> chunks_;
  std::vector<bool> started_;  // by place in the plan
  std::size_t next_ = 0;       // the first that has not started
  std::uint32_t early_ = 0;    // forwards that have started before their turn, which is to come
};

}  // namespace troupe::engine
