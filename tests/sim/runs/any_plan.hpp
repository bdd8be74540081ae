#pragma once

#include <cstdint>
#include <random>

#include "engine/schedule/plan.hpp"

namespace troupe::tests {

/// A plan of a built-in schedule, or, as often, one that `check` accepts and nobody would write:
/// every stage mixes its actions as chance has it, with backwards whole or split, and a cap as
/// tight as can be or not.
engine::plan any_plan(std::uint32_t stages, std::uint32_t microbatches, std::mt19937_64& random);

}  // namespace troupe::tests
