#include "cluster/hosts/scheduler_nodes.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "cluster/hosts/scheduler_core.hpp"

namespace troupe::cluster {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

result<std::vector<node_entry>> nodes_of_allocation(const cluster_config& config) {
  const auto list = variable("SLURM_JOB_NODELIST");
  if (variable("SLURM_JOB_ID").empty() || list.empty())
    return fail(errc::bad_config,
                "this process is in no allocation of Slurm's; start it from a script of sbatch's, "
                "or as `salloc --nodes=N troupe launch FILE`");
  const auto hosts = slurm_hosts(list, variable("SLURM_JOB_CPUS_PER_NODE"));
  if (!hosts) return tl::unexpected(hosts.error());
  return nodes_on(config.nodes, *hosts, "the allocation",
                  "ask for more (sbatch --nodes, --nodelist)");
}

result<std::vector<node_entry>> nodes_of_host_file(const cluster_config& config) {
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_config, config.host_file.string() + why);
  };
  std::ifstream file(config.host_file);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) return refuse(std::string(" cannot be read: ") + std::strerror(errno));
  const auto hosts = host_file_hosts(text);
  if (!hosts) return refuse(", " + hosts.error().text);
  if (hosts->empty()) return refuse(" names no host; write one a line, as \"HOST slots=8\"");
  return nodes_on(config.nodes, *hosts, config.host_file.string(), "add it there");
}

}  // namespace

result<std::vector<node_entry>> nodes_of_scheduler(const cluster_config& config) {
  if (config.launch == launch_way::slurm) return nodes_of_allocation(config);
  if (config.launch == launch_way::mpi && !config.host_file.empty())
    return nodes_of_host_file(config);
  return config.nodes;
}

}  // namespace troupe::cluster
