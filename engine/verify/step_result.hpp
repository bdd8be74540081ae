#pragma once

#include <vector>

#include "engine/base/named_tensor.hpp"

namespace troupe::engine {

/// What a training step gives before its update.
struct step_result {
  double loss = 0;                           ///< Mean over the batch.
  std::vector<named_tensor> gradients = {};  ///< One per parameter; undefined where there is none.
  std::vector<named_tensor> buffers = {};    ///< Running statistics after it, copied.
};

}  // namespace troupe::engine
