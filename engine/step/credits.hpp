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
/// A pure state machine; each event returns what is to be sent now.
class credited_queue {
 public:
  /// `credits`: at least 1.
  explicit credited_queue(std::uint32_t credits) : credits_(credits) {}

  [[nodiscard]] std::vector<edge_place> offer(const edge_place& what);

  /// The receiver begins to use it. Errors: stale for an older epoch; bad_frame for what was not
  /// sent, or was used before.
  [[nodiscard]] result<std::vector<edge_place>> credited(const edge_place& what);

  /// Forgets what an older epoch sent and held: its receiver forgets it too.
  void start_epoch(epoch_id epoch);

  [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

  /// Whether what is offered now may be sent at once.
  [[nodiscard]] bool open() const noexcept { return held_.empty() && sent_.size() < credits_; }

 private:
  std::vector<edge_place> release();

  std::uint32_t credits_;
  epoch_id epoch_;
  std::set<edge_place> sent_;
  std::deque<edge_place> held_;
};

}  // namespace troupe::engine
