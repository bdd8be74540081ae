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

}  // namespace troupe::engine
