#pragma once

#include "cluster/doctor/facts/facts.hpp"
#include "engine/data/data_registry.hpp"

namespace troupe::cluster::doctor {

/// Opens the data of a run in this process, and closes them again. Of the facts, those of the data
/// alone are set; an error names the path, and for one that is relative the folder it begins in.
[[nodiscard]] host_facts examine_data(const requests::data& asked,
                                      const engine::data_registry& known);

}  // namespace troupe::cluster::doctor
