#pragma once

#include <string>
#include <vector>

#include "engine/partition/planner.hpp"

namespace troupe::engine {

/// What a prediction says, in lines for a terminal: the step, then each stage with its layers.
[[nodiscard]] std::vector<std::string> to_lines(const prediction& of,
                                                const std::vector<std::string>& layer_names);

/// How far it was off, in one line; `measured_s` and `measured_bubble` are of the run's steps.
[[nodiscard]] std::string against_measured(const prediction& of, double measured_s,
                                           double measured_bubble);

}  // namespace troupe::engine
