#pragma once

#include <cstdint>

#include "actors/interfaces.hpp"
#include "engine/data/dataset.hpp"

namespace troupe::actors {

/// Cuts a batch into `microbatches` as even as can be, the larger ones first, and sends them to the
/// pipeline's two ends: images to the first stage, labels to the last. At most one micro-batch an
/// image. Returns how many were sent: 0 for an empty batch.
std::uint32_t feed(const engine::batch& batch, const engine::step_key& step,
                   std::uint32_t microbatches, const stage_actor& first, const stage_actor& last);

}  // namespace troupe::actors
