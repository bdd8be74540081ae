#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "engine/collective/norm/norm_parts.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Where a stage's work thread waits, in the middle of an action, for the sum over replicas that
/// the stage's actor makes by messages. One sum at a time.
class norm_meeting {
 public:
  /// For the work thread: has the actor asked, and waits for its answer. Throws std::runtime_error
  /// with the reason after `fail`.
  [[nodiscard]] norm_part wait(const std::function<void()>& ask);

  /// For the actor.
  void answer(norm_part sum);
  /// From any thread: ends the present wait, and all later ones at once. Only the first reason
  /// counts.
  void fail(const error& why);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<norm_part> sum_;
  std::optional<error> failure_;
};

}  // namespace troupe::engine
