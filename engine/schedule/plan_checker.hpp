#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// Where and how a plan breaks a rule.
struct violation {
  std::optional<std::uint32_t> stage;  ///< None: the plan as a whole.
  std::size_t action = 0;              ///< Index in the stage's plan; its size: one is missing.
  std::string text;                    ///< "stage 1: B0 appears twice"
};

/// Proves a plan before it runs, or finds the first violation. In every chunk of every stage each
/// micro-batch goes forward once and, in a training step, backward once: by B, or by I and later W;
/// no backward before its forward; micro-batches in order within F, within I and B, and within W
/// and B (so that sums are made in one order); never more held than the memory cap; and, with all
/// stages together, no action that waits for ever. Time and memory are linear in the plan's size.
[[nodiscard]] std::optional<violation> find_violation(const plan& steps, step_kind kind);

/// The same as a result. Errors: bad_config with the violation's text.
[[nodiscard]] result<void> check(const plan& steps, step_kind kind = step_kind::training);

/// The rules that concern one stage alone.
[[nodiscard]] result<void> check_stage(const stage_plan& steps, stage_id stage,
                                       std::uint32_t microbatches, std::uint32_t chunks = 1,
                                       step_kind kind = step_kind::training);

/// Whether the actions of each stage in `shorter` are in the order that they have in `longer`,
/// which has more micro-batches: required of replicas that wait for each other within forwards and
/// backwards. Weight gradients are not compared. Both have the same stages and chunks.
[[nodiscard]] bool is_part_of(const plan& shorter, const plan& longer);

}  // namespace troupe::engine
