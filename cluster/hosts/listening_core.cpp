#include "cluster/hosts/listening_core.hpp"

#include <map>

#include "cluster/hosts/host_addresses.hpp"

namespace troupe::cluster {

result<void> check_addresses(const std::vector<listening>& all) {
  std::map<std::string, const listening*> known;
  for (const auto& each : all) {
    const auto own = host_of(each.address);
    const auto [place, is_new] = known.try_emplace(own, &each);
    const auto& other = *place->second;
    if (is_new || other.node == each.node || other.machine == each.machine) continue;
    return fail(errc::address_unavailable,
                other.process + " on node " + other.node + " and " + each.process + " on node " +
                    each.node + " both listen at " + own +
                    ", so neither reaches the other there: both hosts have an interface with that "
                    "address, as bridges of containers do; name an address or network that differs "
                    "(address, network in [[node]]; network in [cluster])");
  }
  return {};
}

}  // namespace troupe::cluster
