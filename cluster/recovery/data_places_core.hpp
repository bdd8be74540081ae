#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace troupe::cluster {

/// The processes that are asked, in this order, to open a run's data when the one that had them is
/// lost: one on each host, since all processes of a host see the same files. First comes the host
/// that had the data, then the host of the lost process's replacement, which is the one asked on
/// its host. `hosts`: of each place, as they are now; `lost`: the place; `had_data`: the lost
/// process's host.
[[nodiscard]] inline std::vector<std::size_t> places_for_data(const std::vector<std::string>& hosts,
                                                              std::size_t lost,
                                                              const std::string& had_data) {
  std::vector<std::size_t> places{lost};
  for (std::size_t place = 0; place < hosts.size(); ++place)
    if (std::ranges::none_of(places, [&](auto each) { return hosts[each] == hosts[place]; }))
      places.push_back(place);
  std::ranges::stable_partition(places, [&](auto each) { return hosts[each] == had_data; });
  return places;
}

}  // namespace troupe::cluster
