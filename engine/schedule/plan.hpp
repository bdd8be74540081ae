#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace troupe::engine {

/// What a stage does with one micro-batch.
enum class action_kind : std::uint8_t {
  forward,   ///< F: the stage's output.
  backward,  ///< B: gradients of input and weights.
};

struct action {
  action_kind kind = action_kind::forward;
  microbatch_id microbatch;

  bool operator==(const action&) const = default;
};

/// One stage's share of a step: its actions in order, and how many micro-batches may be between
/// their forward and backward at once.
struct stage_plan {
  std::vector<action> actions;
  std::uint32_t memory_cap = 0;

  bool operator==(const stage_plan&) const = default;
};

/// A schedule for one step: one entry a stage, stage 0 first. A value type.
struct plan {
  std::string schedule;  ///< Name of the generator.
  std::uint32_t microbatches = 0;
  std::vector<stage_plan> stages;

  bool operator==(const plan&) const = default;
};

}  // namespace troupe::engine
