#include "cluster/hosts/slice_copies_core.hpp"

#include <algorithm>

namespace troupe::cluster {

std::vector<slice_copy_order> second_copies(const std::map<std::string, std::size_t>& written,
                                            std::size_t disks) {
  std::vector<slice_copy_order> orders;
  if (disks < 2) return orders;
  for (const auto& [file, from] : written) orders.push_back({file, from, (from + 1) % disks});
  return orders;
}

std::vector<slice_copy_order> missing_copies(
    const std::vector<std::set<std::string>>& needed,
    const std::map<std::string, std::set<std::size_t>>& held) {
  std::vector<slice_copy_order> orders;
  std::map<std::size_t, std::size_t> asked;  // how often each disk
  for (std::size_t disk = 0; disk < needed.size(); ++disk)
    for (const auto& file : needed[disk]) {
      const auto holders = held.find(file);
      if (holders == held.end() || holders->second.contains(disk)) continue;
      const auto& all = holders->second;
      const auto from =
          *std::ranges::min_element(all, {}, [&](std::size_t each) { return asked[each]; });
      ++asked[from];
      orders.push_back({file, from, disk});
    }
  return orders;
}

}  // namespace troupe::cluster
