#pragma once

#include <cstdint>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// Proves a plan before it runs, or names the first violation with its stage, action and rule:
/// every micro-batch exactly once per kind and stage; no backward before its forward (none at all
/// in an evaluation step); micro-batches in order within a kind; never more held than the memory
/// cap; and, with all stages together, no action that waits for ever. Errors: bad_config.
[[nodiscard]] result<void> check(const plan& steps, step_kind kind = step_kind::training);

/// The rules that concern one stage alone.
[[nodiscard]] result<void> check_stage(const stage_plan& steps, stage_id stage,
                                       std::uint32_t microbatches,
                                       step_kind kind = step_kind::training);

}  // namespace troupe::engine
