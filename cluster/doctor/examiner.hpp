#pragma once

#include <string_view>

#include "engine/data/data_registry.hpp"

namespace troupe::cluster::doctor {

/// Does what a doctor on another host asks (see facts_text.hpp) and writes facts to standard
/// output. `known`: the program's sources of data. Its agent leaves the cluster's secret where a
/// stage process finds it. Returns the exit code: 0, or 1 with the reason on standard error. A
/// listener answers until it is killed.
[[nodiscard]] int run_examiner(std::string_view request, const engine::data_registry& known);

}  // namespace troupe::cluster::doctor
