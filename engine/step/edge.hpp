#pragma once

#include <cstdint>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// What flows along an edge of the pipeline. Each edge has credits of its own.
enum class edge : std::uint8_t {
  input,     ///< Activations to the next slice of the model; inputs to the first.
  target,    ///< Labels to the last slice.
  gradient,  ///< Gradients to the slice before.
};

inline constexpr std::uint32_t default_credits = 4;  ///< Of each edge; docs/messages.md says why.
inline constexpr std::uint32_t max_credits = max_microbatches;

}  // namespace troupe::engine
