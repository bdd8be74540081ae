#pragma once

#include <vector>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// What a micro-batch's forward gives on the last stage, once it is known on the host.
struct microbatch_loss {
  microbatch_id microbatch;
  double loss = 0;                   ///< Its share of the batch's mean loss.
  std::vector<double> metrics = {};  ///< Of an evaluation: each one's sum.
};

}  // namespace troupe::engine
