#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// The steps that the replacement of a lost stage may have to repeat, if each stage's last versions
/// are kept: the training steps after the newest version that all stages are known to have, and the
/// evaluation steps that not all stages are known to have finished. A pure value type.
///
/// A version is made every `accumulate` steps, and a stage votes on a step only when its last
/// version is kept. So the decision on a step says that each stage has the last version before it.
/// An evaluation step makes no version and is not voted on.
class replay_window {
 public:
  /// `accumulate`: at least 1.
  explicit replay_window(std::uint32_t accumulate = 1) : accumulate_(accumulate) {}

  /// Step `number` among training steps has begun; the first one follows a version.
  void begun(std::uint64_t number, const step_key& key);

  /// An evaluation step has begun.
  void begun_evaluation(const step_key& key) { evaluations_.push_back(key); }

  /// All stages have voted on that step. Returns the first training step that may have to be
  /// repeated; nothing if no such step has begun.
  [[nodiscard]] std::optional<step_key> decided(std::uint64_t number);

  /// All stages have finished the steps before this one. Returns the evaluation steps that are
  /// forgotten as a result.
  [[nodiscard]] std::vector<step_key> done_before(const step_key& first);

  /// Whether everything from this training step on is remembered.
  [[nodiscard]] bool reaches(const step_key& from) const {
    return !steps_.empty() && steps_.front().second <= from;
  }

  /// Whether the step has begun and was not forgotten.
  [[nodiscard]] bool contains(const step_key& key) const;

 private:
  std::uint32_t accumulate_;
  std::optional<std::uint64_t> first_version_;
  std::deque<std::pair<std::uint64_t, step_key>> steps_;
  std::vector<step_key> evaluations_;  // rising
};

/// The newest step, up to `last`, that is among those of each stage.
[[nodiscard]] std::optional<std::uint64_t> newest_common(
    const std::vector<std::vector<std::uint64_t>>& of_stages, std::uint64_t last);

/// What is known of lost stages, one or several, when replacements are to repeat their last steps.
struct lost_stages {
  std::vector<std::vector<std::uint64_t>> versions = {};  ///< Of each: which are kept.
  std::uint64_t begun = 0;                                ///< The last training step; 0: none.
  /// Training steps that one of them has not answered, or a stage that does them again already.
  std::vector<std::uint64_t> unanswered = {};
};

/// The version that all replacements start from, so that what one needs of another is computed
/// again by both. It is the newest one before the last training step and before each unanswered
/// one, so that a stage that is itself repeating steps gets all it needs. Nothing: there is none of
/// all stages.
[[nodiscard]] std::optional<std::uint64_t> version_for(const lost_stages& all);

}  // namespace troupe::engine
