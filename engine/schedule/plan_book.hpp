#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The plans that the steps of a run follow. Each is made when the first step needs it, and steps
/// name it by its number from then on. A value; used by one thread.
class plan_book {
 public:
  /// Plans at once. A run needs four: a full batch's and that of a last, shorter one, in training
  /// and evaluation.
  static constexpr std::uint32_t capacity = 8;

  /// Makes a plan that is checked.
  using planner = std::function<result<plan>(step_kind, std::uint32_t microbatches)>;

  struct entry {
    std::uint32_t number = 0;        ///< Below `capacity`.
    std::optional<plan> fresh = {};  ///< Made just now: the stages do not know it.
  };

  explicit plan_book(planner make) : make_(std::move(make)) {}

  /// The plan of such a step. One that is made when the book is full takes the number of the one
  /// that was not asked for the longest. Errors: the planner's, and nothing is kept.
  [[nodiscard]] result<entry> plan_for(step_kind kind, std::uint32_t microbatches);

  struct known_plan {
    std::uint32_t number = 0;
    step_kind kind = step_kind::training;
    plan steps;
  };

  /// Makes every plan once more that steps may name, for a stage that knows none. Errors: the
  /// planner's.
  [[nodiscard]] result<std::vector<known_plan>> all() const;

 private:
  struct kept {
    step_kind kind = step_kind::training;
    std::uint32_t microbatches = 0;
    std::uint64_t asked = 0;  ///< When it was last asked for.
  };

  planner make_;
  std::vector<kept> kept_;  ///< By number.
  std::uint64_t asked_ = 0;
};

}  // namespace troupe::engine
