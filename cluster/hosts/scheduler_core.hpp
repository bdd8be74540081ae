#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "messages/base/error.hpp"

// The hosts that a scheduler gives to a run, as it names them.

namespace troupe::cluster {

/// A host and how many cores of it are ours; 0: not known.
struct given_host {
  std::string name;
  std::uint32_t cores = 0;
  bool operator==(const given_host&) const = default;
};

/// The most hosts that a list may name.
inline constexpr std::size_t most_hosts = 65'536;

/// The hosts of a Slurm node list, in its order: "gpu[01-03,7],login". Errors: bad_config.
[[nodiscard]] result<std::vector<std::string>> expand_host_list(std::string_view list);

/// An allocation of Slurm's. `list`: SLURM_JOB_NODELIST; `cores`: SLURM_JOB_CPUS_PER_NODE
/// ("8(x2),4"), or empty. Errors: bad_config.
[[nodiscard]] result<std::vector<given_host>> slurm_hosts(std::string_view list,
                                                          std::string_view cores);

/// The hosts of an Open MPI host file, in its order: one a line, with "slots=N" as its cores, and
/// comments from '#' on. A host that is named again adds to its slots. Errors: bad_config, with the
/// line's number.
[[nodiscard]] result<std::vector<given_host>> host_file_hosts(std::string_view text);

/// The nodes of a run on these hosts: one for each host where no node is described, else the nodes
/// themselves, of which those without a host take the hosts that nobody names, in order. Cores that
/// a node leaves open are its host's. `source`: what gave the hosts, "the allocation", and
/// `remedy`: how one gets more of them; both for errors. Errors: bad_config.
[[nodiscard]] result<std::vector<node_entry>> nodes_on(std::vector<node_entry> nodes,
                                                       const std::vector<given_host>& hosts,
                                                       const std::string& source,
                                                       const std::string& remedy);

}  // namespace troupe::cluster
