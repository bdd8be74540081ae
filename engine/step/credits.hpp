#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// What flows along an edge of the pipeline. Each edge has credits of its own.
enum class edge : std::uint8_t {
  input,     ///< Activations to the next slice of the model; images to the first.
  target,    ///< Labels to the last slice.
  gradient,  ///< Gradients to the slice before.
};

inline constexpr std::uint32_t default_credits = 4;  ///< Of each edge; docs/messages.md says why.
inline constexpr std::uint32_t max_credits = max_microbatches;

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
