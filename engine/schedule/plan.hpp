#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"

namespace troupe::engine {

inline constexpr std::uint32_t max_stages = 1024;           ///< Of one pipeline.
inline constexpr std::uint32_t max_microbatches = 1 << 14;  ///< Of one step.
inline constexpr std::uint32_t max_chunks = 16;             ///< Of one stage.

/// What a stage does with one micro-batch.
enum class action_kind : std::uint8_t {
  forward,          ///< F: the output.
  backward,         ///< B: gradients of input and weights, I and W in one.
  input_gradient,   ///< I: the gradient of the input, which the stage before waits for.
  weight_gradient,  ///< W: the gradients of the weights, which nobody waits for.
};

struct action {
  action_kind kind = action_kind::forward;
  microbatch_id microbatch = {};
  std::uint32_t chunk = 0;  ///< Which of its stage's slices of the model.

  bool operator==(const action&) const = default;
};

/// Whether gradients flow back.
enum class step_kind : std::uint8_t {
  training,    ///< Every micro-batch goes forward and backward, then the parameters change.
  evaluation,  ///< Every micro-batch goes forward only.
};

/// Where the slices of a model lie when each stage has several of them, its chunks. A slice's
/// number in the model is its virtual stage.
enum class chunk_order : std::uint8_t {
  looped,    ///< Chunk c of stage s is at virtual stage c * stages + s.
  v_shaped,  ///< The same, but odd chunks run from the last stage to the first.
};

/// One slice of a model: a stage and which of its chunks.
struct slice {
  std::uint32_t stage = 0;
  std::uint32_t chunk = 0;

  bool operator==(const slice&) const = default;
};

/// How a model is spread over stages. A value type.
struct model_layout {
  std::uint32_t stages = 1;
  std::uint32_t chunks = 1;  ///< Of each stage.
  chunk_order order = chunk_order::looped;

  bool operator==(const model_layout&) const = default;

  [[nodiscard]] std::uint32_t virtual_stages() const noexcept { return stages * chunks; }
  [[nodiscard]] std::uint32_t virtual_stage_of(slice at) const noexcept {
    const bool back = order == chunk_order::v_shaped && at.chunk % 2 == 1;
    return at.chunk * stages + (back ? stages - 1 - at.stage : at.stage);
  }
  [[nodiscard]] slice slice_at(std::uint32_t virtual_stage) const noexcept {
    const slice there{virtual_stage % stages, virtual_stage / stages};
    const bool back = order == chunk_order::v_shaped && there.chunk % 2 == 1;
    return {back ? stages - 1 - there.stage : there.stage, there.chunk};
  }
};

/// One stage's share of a step: its actions in order, and how many activations it may hold at once.
/// An activation is that of one micro-batch in one chunk, held from its forward to the end of its
/// backward (in an evaluation step none stays: the cap is 1).
struct stage_plan {
  std::vector<action> actions;
  std::uint32_t memory_cap = 0;

  bool operator==(const stage_plan&) const = default;
};

/// A schedule for one step: one entry per stage, stage 0 first. A value type.
struct plan {
  std::string schedule;  ///< Name of the generator.
  std::uint32_t microbatches = 0;
  std::vector<stage_plan> stages;
  std::uint32_t chunks = 1;  ///< Of each stage.
  chunk_order order = chunk_order::looped;

  bool operator==(const plan&) const = default;

  [[nodiscard]] model_layout layout() const noexcept {
    return {static_cast<std::uint32_t>(stages.size()), chunks, order};
  }
};

}  // namespace troupe::engine
