#include "engine/collective/buckets.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace troupe::engine {

std::vector<std::uint32_t> owners_of(const std::vector<std::uint64_t>& bytes,
                                     std::uint32_t owners) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](auto i) { return bytes[i]; });
  std::vector<std::uint64_t> has(owners, 0);
  std::vector<std::uint32_t> owner(bytes.size(), 0);
  for (const auto i : order) {
    const auto fewest = std::ranges::min_element(has);
    owner[i] = static_cast<std::uint32_t>(fewest - has.begin());
    *fewest += bytes[i];
  }
  return owner;
}

std::vector<bucket> make_buckets(const std::vector<std::uint64_t>& bytes,
                                 const std::vector<std::uint32_t>& owners,
                                 std::uint64_t most_bytes) {
  std::vector<bucket> full;
  std::map<std::uint32_t, bucket> filling;  // by owner
  for (auto i = bytes.size(); i-- > 0;) {
    auto& open = filling.try_emplace(owners[i], bucket{owners[i]}).first->second;
    const bool is_full =
        open.bytes + bytes[i] > most_bytes || open.parameters.size() >= most_bucket_parameters;
    if (!open.parameters.empty() && is_full) full.push_back(std::exchange(open, bucket{owners[i]}));
    open.parameters.push_back(i);
    open.bytes += bytes[i];
  }
  for (auto& [owner, open] : filling) full.push_back(std::move(open));
  // A bucket is complete with its last parameter: in the order of those.
  std::ranges::sort(full, std::ranges::greater(),
                    [](const bucket& each) { return each.parameters.back(); });
  return full;
}

}  // namespace troupe::engine
