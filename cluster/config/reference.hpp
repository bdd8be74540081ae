#pragma once

#include <string>
#include <vector>

#include "cluster/config/program_info.hpp"

namespace troupe::cluster {

/// Every key that the configuration files of these programs may have, as Markdown: a section for
/// each table with key, flag, type, default, allowed values and meaning. What programs have in
/// common is there once, under the first of them that has it, and says where others differ.
[[nodiscard]] std::string config_reference(const std::vector<program_info>& programs);

}  // namespace troupe::cluster
