#include "cluster/recovery/shared_hosts_core.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t most_named = 4;

std::string nodes_of(const stage_site& own, const stage_site& other) {
  return own.node == other.node ? "node " + own.node : "nodes " + own.node + " and " + other.node;
}

}  // namespace

std::string words_on_shared_hosts(const std::vector<stage_site>& sites,
                                  const std::vector<std::size_t>& second) {
  std::string named;
  std::size_t count = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const auto& own = sites[i];
    const auto& other = sites[second.at(i)];
    if (second[i] == i || own.host != other.host) continue;
    if (++count > most_named) continue;
    named += (count == 1 ? "" : ", ") + own.stage + " (" + nodes_of(own, other) + ", host " +
             own.host + ")";
  }
  if (count == 0) return "";
  if (count > most_named) named += " and " + std::to_string(count - most_named) + " more stages";
  return "all copies of the versions of " + named +
         " are on one host: if that is lost the run goes back to its last checkpoint, or to its "
         "beginning; for a copy elsewhere give nodes of several hosts some stages";
}

}  // namespace troupe::cluster
