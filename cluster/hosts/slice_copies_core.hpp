#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::cluster {

/// A file of a checkpoint that one host's disk gets from another's. Disks go by numbers.
struct slice_copy_order {
  std::string file;
  std::size_t from = 0, to = 0;
  bool operator==(const slice_copy_order&) const = default;
};

/// Second copies: what a disk's own stages have written goes to the next disk. `written`: who wrote
/// each file. With one disk there is nobody to copy to.
[[nodiscard]] std::vector<slice_copy_order> second_copies(
    const std::map<std::string, std::size_t>& written, std::size_t disks);

/// What disks lack of the files that their stages are to read. `needed`: by disk; `held`: the disks
/// that have each file. Of those the one is asked that has been asked for the fewest.
[[nodiscard]] std::vector<slice_copy_order> missing_copies(
    const std::vector<std::set<std::string>>& needed,
    const std::map<std::string, std::set<std::size_t>>& held);

}  // namespace troupe::cluster
