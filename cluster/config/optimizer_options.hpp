#pragma once

#include <vector>

#include "cluster/config/option.hpp"

namespace troupe::cluster {

/// The table [optimizer]: the options of every built-in optimizer, the course of the learning rate,
/// and what is done to gradients before an update.
[[nodiscard]] std::vector<option> optimizer_options();

}  // namespace troupe::cluster
