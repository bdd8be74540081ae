#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

class proved_plan;

/// Shared by all steps that follow it, from any thread.
using shared_plan = std::shared_ptr<const proved_plan>;

/// One stage's plan of a step, which `check_stage` accepts: whoever holds one need not check again.
/// It is made once, however many steps follow it. Immutable.
class proved_plan {
 public:
  /// Where in the plan a chunk's actions of one kind are, in the order of micro-batches.
  struct chunk_places {
    std::vector<std::size_t> forwards;
    std::vector<std::size_t> gradients;  ///< I and B.
    std::vector<std::size_t> weights;    ///< W.
  };

  /// Errors: bad_config naming the rule that the plan breaks.
  [[nodiscard]] static result<shared_plan> prove(stage_plan steps, std::uint32_t microbatches,
                                                 std::uint32_t chunks, step_kind kind);

  /// The plan of a stage whose replica has no micro-batch of a step.
  [[nodiscard]] static shared_plan empty(std::uint32_t chunks, step_kind kind);

  [[nodiscard]] const std::vector<action>& actions() const noexcept { return steps_.actions; }
  [[nodiscard]] std::uint32_t microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] std::uint32_t chunks() const noexcept {
    return static_cast<std::uint32_t>(places_.size());
  }
  [[nodiscard]] step_kind kind() const noexcept { return kind_; }
  [[nodiscard]] const chunk_places& places_of(std::uint32_t chunk) const { return places_[chunk]; }

  /// Activations that the memory cap allows and the plan never holds; 0 in an evaluation step.
  [[nodiscard]] std::uint32_t spare() const noexcept { return spare_; }

 private:
  proved_plan(stage_plan steps, std::uint32_t microbatches, std::uint32_t chunks, step_kind kind);

  stage_plan steps_;
  std::uint32_t microbatches_;
  step_kind kind_;
  std::vector<chunk_places> places_;  ///< By chunk.
  std::uint32_t spare_ = 0;
};

}  // namespace troupe::engine
