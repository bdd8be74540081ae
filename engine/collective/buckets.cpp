#include "engine/collective/buckets.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace troupe::engine {
namespace {

/// A largest share that exceeds an equal one by more than 1 / even_within is uneven.
constexpr std::uint64_t even_within = 20;

/// Who owns each parameter, and the bytes of the largest share.
struct placement {
  std::vector<std::uint32_t> owner;
  std::uint64_t largest_share = 0;
};

/// Each parameter, in this order, goes to the first owner that has room for it within `most_bytes`,
/// or where none has, to the one that has the fewest bytes.
placement place(const std::vector<std::uint64_t>& bytes, const std::vector<std::size_t>& order,
                std::uint32_t owners, std::uint64_t most_bytes) {
  std::vector<std::uint64_t> has(owners, 0);
  placement made{.owner = std::vector<std::uint32_t>(bytes.size(), 0)};
  for (const auto i : order) {
    auto chosen =
        std::ranges::find_if(has, [&](auto share) { return share + bytes[i] <= most_bytes; });
    if (chosen == has.end()) chosen = std::ranges::min_element(has);
    made.owner[i] = static_cast<std::uint32_t>(chosen - has.begin());
    *chosen += bytes[i];
  }
  made.largest_share = std::ranges::max(has);
  return made;
}

}  // namespace

std::vector<std::uint32_t> owners_of(const std::vector<std::uint64_t>& bytes,
                                     std::uint32_t owners) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](auto i) { return bytes[i]; });
  // Without any room each goes to the owner with the fewest bytes. So parameters of one size belong
  // to all owners in turn, who then sum at the same time; packed they belong to one.
  auto best = place(bytes, order, owners, 0);
  const auto total = std::reduce(bytes.begin(), bytes.end());
  if (best.largest_share * owners <= total + total / even_within) return std::move(best.owner);
  auto least = std::max(bytes[order.front()], (total + owners - 1) / owners);
  while (least < best.largest_share) {
    const auto room = least + (best.largest_share - least) / 2;
    auto packed = place(bytes, order, owners, room);
    if (packed.largest_share > room) least = room + 1;
    if (packed.largest_share < best.largest_share) best = std::move(packed);
  }
  return std::move(best.owner);
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
