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

/// The sender's side of an edge: it tracks what was sent and is not yet used by the receiver, which
/// is never more than the edge has credits. What exceeds the credits is held, in order, since its
/// producer cannot wait. What is offered as logged can be sent again, to the replacement of a lost
/// receiver. A pure state machine; each event returns what is to be sent now.
class credited_queue {
 public:
  /// `credits`: at least 1.
  explicit credited_queue(std::uint32_t credits) : credits_(credits) {}

  /// `is_logged`: it is remembered until `forget_before`.
  [[nodiscard]] std::vector<edge_place> offer(const edge_place& what, bool is_logged = false);

  /// The receiver has begun to use a tensor. Errors: stale for an older epoch; bad_frame for what
  /// was not sent, or was used before.
  [[nodiscard]] result<std::vector<edge_place>> credited(const edge_place& what);

  /// The receiver was lost. After `resume`, and not before, its replacement gets all that was
  /// logged from this step on, in the order in which it was offered, with fresh credits.
  void start_over(const step_key& from);

  /// The replacement may be sent what it needs.
  [[nodiscard]] std::vector<edge_place> resume();

  /// Forgets what was logged of steps before this one.
  void forget_before(const step_key& first);
  /// Forgets what was logged of this step.
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
