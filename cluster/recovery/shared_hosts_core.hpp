#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace troupe::cluster {

/// Where a stage runs: its node, and the host of that by the name that it is reached by.
struct stage_site {
  std::string stage, node, host;
};

/// Which stages lose all their versions with one host, since the node that keeps the second copy is
/// on it too, as a warning for a user; empty: there are none. `second`: the place of that node for
/// each stage (see second_keepers).
[[nodiscard]] std::string words_on_shared_hosts(const std::vector<stage_site>& sites,
                                                const std::vector<std::size_t>& second);

}  // namespace troupe::cluster
