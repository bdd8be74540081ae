#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// The training steps that a lost stage may have to do again, where each stage keeps its last
/// versions: those behind the newest version that all stages are known to have. A pure value type.
///
/// A version is made every `accumulate` steps, and a stage votes on a step only when its last
/// version is kept. So the decision on a step says that each stage has the last version before it.
class replay_window {
 public:
  /// `accumulate`: at least 1.
  explicit replay_window(std::uint32_t accumulate = 1) : accumulate_(accumulate) {}

  /// Step `number` among training steps has begun; the first one follows a version.
  void begun(std::uint64_t number, const step_key& key);

  /// All stages have voted on that step. Returns the first step that may have to be done again.
  /// Nothing: none was begun that would be one.
  [[nodiscard]] std::optional<step_key> decided(std::uint64_t number);

  /// Whether nothing was forgotten from this step on.
  [[nodiscard]] bool reaches(const step_key& from) const {
    return !steps_.empty() && steps_.front().second <= from;
  }

  /// Whether the step has begun and was not forgotten.
  [[nodiscard]] bool contains(const step_key& key) const;

 private:
  std::uint32_t accumulate_;
  std::optional<std::uint64_t> first_version_;
  std::deque<std::pair<std::uint64_t, step_key>> steps_;
};

}  // namespace troupe::engine
