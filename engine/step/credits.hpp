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
/// edge has credits. A pure state machine.
class credit_window {
 public:
  /// `credits`: at least 1.
  explicit credit_window(std::uint32_t credits) : credits_(credits) {}

  /// Whether one more may be sent.
  [[nodiscard]] bool open() const noexcept { return spent_.size() < credits_; }

  /// Sends one; the window must be open.
  void spend(const edge_place& what) { spent_.insert(what); }

  /// The receiver begins to use it. Errors: stale for an older epoch; bad_frame for what was not
  /// sent, or was used before.
  [[nodiscard]] result<void> credited(const edge_place& what);

  /// Forgets what an older epoch sent: its receiver forgets it too.
  void start_epoch(epoch_id epoch);

 private:
  std::uint32_t credits_;
  epoch_id epoch_;
  std::set<edge_place> spent_;
};

/// An edge whose sender cannot be made to wait: what exceeds the credits is held, in order. A pure
/// state machine; each event returns what is to be sent now.
class credited_queue {
 public:
  explicit credited_queue(std::uint32_t credits) : window_(credits) {}

  [[nodiscard]] std::vector<edge_place> offer(const edge_place& what);

  /// As credit_window::credited.
  [[nodiscard]] result<std::vector<edge_place>> credited(const edge_place& what);

  /// Forgets what an older epoch sent and held.
  void start_epoch(epoch_id epoch);

  [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

  /// Whether what is offered now may be sent at once.
  [[nodiscard]] bool open() const noexcept { return held_.empty() && window_.open(); }

 private:
  std::vector<edge_place> release();

  credit_window window_;
  std::deque<edge_place> held_;
};

}  // namespace troupe::engine
