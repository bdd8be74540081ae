#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace troupe::engine {

inline constexpr std::uint32_t max_stages = 1024;           ///< Of one pipeline.
inline constexpr std::uint32_t max_microbatches = 1 << 14;  ///< Of one step.

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

/// Whether gradients flow back.
enum class step_kind : std::uint8_t {
  training,    ///< Every micro-batch goes forward and backward, then the parameters change.
  evaluation,  ///< Every micro-batch goes forward only.
};

/// One stage's share of a step: its actions in order, and how many micro-batches may be between
/// their forward and backward at once (in an evaluation step none stays: the cap is 1).
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
