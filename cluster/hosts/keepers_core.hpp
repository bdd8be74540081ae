#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace troupe::cluster {

/// Who keeps the versions of each stage beside its own node, by place: the next stage on another
/// host, of those that keep the fewest, so that a host can be lost as one; where all stages are on
/// one host, the next. `hosts`: that of each stage, not empty.
[[nodiscard]] std::vector<std::size_t> second_keepers(const std::vector<std::string>& hosts);

}  // namespace troupe::cluster
