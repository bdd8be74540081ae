#include "cluster/hosts/keepers_core.hpp"

namespace troupe::cluster {

std::vector<std::size_t> second_keepers(const std::vector<std::string>& hosts) {
  const auto count = hosts.size();
  std::vector<std::size_t> keeps(count, 0);  // for how many others
  std::vector<std::size_t> second;
  for (std::size_t stage = 0; stage < count; ++stage) {
    auto best = (stage + 1) % count;
    for (std::size_t further = 1; further < count; ++further) {
      const auto other = (stage + further) % count;
      if (hosts[other] == hosts[stage]) continue;
      if (hosts[best] == hosts[stage] || keeps[other] < keeps[best]) best = other;
    }
    ++keeps[best];
    second.push_back(best);
  }
  return second;
}

std::vector<other_keepers> keepers_beside(const std::vector<std::string>& hosts,
                                          const std::vector<bool>& lends, bool outlives) {
  if (hosts.size() == 1) return {other_keepers{.stage = {}, .trainer = true}};
  std::vector<other_keepers> all;
  for (const auto second : second_keepers(hosts))
    all.push_back({.stage = second, .trainer = outlives || lends.at(all.size())});
  return all;
}

}  // namespace troupe::cluster
