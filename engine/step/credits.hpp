#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "engine/step/edge.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// One tensor's place on its edge.
struct edge_place {
  step_key key;
  microbatch_id microbatch;

  auto operator<=>(const edge_place&) const = default;
};

/// The sender's side of an edge: what is sent and not yet used by the receiver, never more than the
/// edge has credits; what exceeds them is held, in order, for its producer cannot be made to wait.
/// What is offered as logged can be sent once more, to a receiver that takes the place of a lost
/// one. A pure state machine; each event returns what is to be sent now.
class credited_queue {
 public:
  /// `credits`: at least 1.
  explicit credited_queue(std::uint32_t credits) : credits_(credits) {}

  /// `is_logged`: it is remembered until `forget_before`.
  [[nodiscard]] std::vector<edge_place> offer(const edge_place& what, bool is_logged = false);

  /// The receiver begins to use it. Errors: stale for an older epoch; bad_frame for what was not
  /// sent, or was used before.
  [[nodiscard]] result<std::vector<edge_place>> credited(const edge_place& what);

  /// The receiver was lost. Whoever takes its place is to get all that was logged from this step
  /// on, in the order of its offers, with fresh credits, and nothing before `resume`.
  void start_over(const step_key& from);

  /// What was started over may be sent.
  [[nodiscard]] std::vector<edge_place> resume();

  /// What was logged of steps before this one is not sent again.
  void forget_before(const step_key& first);
  /// Nor what was logged of this step.
  void forget(const step_key& key);

  /// Forgets what an older epoch sent, held and logged: its receiver forgets it too.
  void start_epoch(epoch_id epoch);

  [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }
  [[nodiscard]] bool holds(const edge_place& what) const;

  /// Whether what is offered now may be sent at once.
  [[nodiscard]] bool open() const noexcept {
    return !is_paused_ && held_.empty() && sent_.size() < credits_;
  }

 private:
  std::vector<edge_place> release();

  std::uint32_t credits_;
  epoch_id epoch_;
  std::set<edge_place> sent_;
  std::deque<edge_place> held_;
  std::deque<edge_place> log_;  // in the order of offers
  bool is_paused_ = false;      // started over, and not resumed
};

}  // namespace troupe::engine
