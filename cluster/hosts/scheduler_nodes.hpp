#pragma once

#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The nodes of a run with their hosts: under Slurm those of the allocation that this process is in
/// (its environment says so), under mpirun those of the host file; see nodes_on. What is launched
/// otherwise keeps its nodes. Errors: bad_config with what to do, where there is no allocation or
/// host file, or it does not have what the nodes ask for.
[[nodiscard]] result<std::vector<node_entry>> nodes_of_scheduler(const cluster_config& config);

}  // namespace troupe::cluster
