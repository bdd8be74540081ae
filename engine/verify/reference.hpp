#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/stage/stage_module.hpp"
#include "engine/verify/step_result.hpp"

namespace troupe::engine {

/// The gradients of parameters under their names.
[[nodiscard]] std::vector<named_tensor> name_gradients(const std::vector<named_tensor>& parameters,
                                                       const step_gradients& gradients);

/// Copies of a model's buffers, on the CPU.
[[nodiscard]] std::vector<named_tensor> copy_buffers(const model& layers);

/// One training step of a whole model as one process does it without a pipeline: each micro-batch
/// forward through all layers and backward by plain autograd, gradients summed in the order of
/// micro-batches, then over ties. What a pipeline of the same layers is compared with. Writes the
/// model's buffers. `how`: its place in a pipeline and `recompute` do not count. `loss_scale`: see
/// `unscale`. Runs in the calling thread; torch's exceptions pass through.
[[nodiscard]] step_result run_in_one_piece(const model& layers, const stage_options& how,
                                           std::uint64_t step,
                                           const std::vector<batch>& microbatches,
                                           double loss_scale = 1);

}  // namespace troupe::engine
