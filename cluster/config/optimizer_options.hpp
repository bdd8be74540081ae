#pragma once

#include <vector>

#include "cluster/config/option.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::cluster {

/// The table [optimizer]: the options of every optimizer that a run can name, the learning rate
/// schedule, and what is done to gradients before an update.
[[nodiscard]] std::vector<option> optimizer_options(const optimizers::registry& known);

}  // namespace troupe::cluster
