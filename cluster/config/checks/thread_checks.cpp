#include "cluster/config/checks/thread_checks.hpp"

#include <algorithm>
#include <cstddef>

#include "cluster/hosts/placement_core.hpp"

namespace troupe::cluster {
namespace {

// The fewest that a stage has whose node says no threads of its own; 0: not known.
unsigned least_cores(const cluster_config& cluster, unsigned here) {
  if (cluster.nodes.empty()) return cluster.launch == launch_way::local ? here : 0;
  unsigned least = 0;
  for (const auto& node : cluster.nodes) {
    const auto cores = known_cores(node, cluster.launch, here);
    if (node.threads == 0 && cores > 0) least = least == 0 ? cores : std::min(least, cores);
  }
  return least;
}

}  // namespace

unsigned known_cores(const node_entry& node, launch_way launch, unsigned here) noexcept {
  if (node.cores > 0) return node.cores;
  return launch == launch_way::local ? here : 0;
}

result<void> check_threads_of(const draft& whole, const std::string& setting, int threads,
                              unsigned cores) {
  if (cores == 0 || !has_absurd_threads(threads, cores)) return {};
  return fail_at(whole, setting, words_on_absurd_threads(threads, cores));
}

std::vector<error> check_threads(draft& whole, const registries&) {
  const auto& config = whole.config;
  const auto& nodes = config.cluster.nodes;
  const auto here = cores_here();
  std::vector<error> found;
  const auto check = [&](const std::string& setting, int threads, unsigned cores) {
    if (const auto fine = check_threads_of(whole, setting, threads, cores); !fine)
      found.push_back(fine.error());
  };
  check("pipeline.threads_per_stage", config.pipeline.threads_per_stage,
        least_cores(config.cluster, here));
  for (std::size_t i = 0; i < nodes.size(); ++i)
    check("node[" + std::to_string(i) + "].threads", nodes[i].threads,
          known_cores(nodes[i], config.cluster.launch, here));
  check("data.threads", config.data.threads, config.data.node.empty() ? here : 0);
  return found;
}

}  // namespace troupe::cluster
