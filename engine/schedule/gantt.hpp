#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "engine/schedule/simulation.hpp"

namespace troupe::engine {

// Charts of a plan over time, one row a stage. `run` is what `simulate` made of that plan and those
// costs.

/// For a terminal: each action's name, then '-' as long as it lasts; where that is too narrow, its
/// letter alone. No row has more than `columns` characters after its stage's name. `colour`: with
/// escape sequences of a terminal.
[[nodiscard]] std::string to_terminal(const plan& steps, const std::vector<slice_cost>& costs,
                                      const simulation& run, std::size_t columns, bool colour);

/// As a picture that stands alone: SVG with a scale, a legend, and each action's times as its
/// title. `unit`: of the times, "s"; empty: none is named.
[[nodiscard]] std::string to_svg(const plan& steps, const std::vector<slice_cost>& costs,
                                 const simulation& run, const std::string& unit = "");

}  // namespace troupe::engine
