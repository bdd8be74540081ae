#pragma once

#include <string>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "cluster/hosts/cluster_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// No process has more threads than its cores are ever of use to, as far as those are known: of
/// this machine, and of nodes that say theirs. A part of `errors_together`. Errors begin with the
/// setting to change.
[[nodiscard]] std::vector<error> check_threads(draft& whole, const registries& known);

/// The same of one setting and the cores of its processes; 0: not known.
[[nodiscard]] result<void> check_threads_of(const draft& whole, const std::string& setting,
                                            int threads, unsigned cores);

/// The cores of a node that says them, or is on this machine, which has `here`; 0: not known.
[[nodiscard]] unsigned known_cores(const node_entry& node, launch_way launch,
                                   unsigned here) noexcept;

}  // namespace troupe::cluster
