#include "engine/collective/all_gather_core.hpp"

#include <algorithm>

namespace troupe::engine {
namespace {

error without_part_of(std::uint32_t rank) {
  return {errc::peer_lost, "replica " + std::to_string(rank) +
                               " of it is gone: its parameters cannot be had without it"};
}

}  // namespace

result<all_gather_core::open_step*> all_gather_core::open(const step_key& key,
                                                          const std::string& what) {
  if (lost_) return tl::unexpected(without_part_of(*lost_));
  if (last_ && key <= *last_) return fail(errc::stale, what + ", which is over");
  if (!open_.contains(key) && open_.size() >= max_open)
    return fail(errc::bad_frame, what + ": too many steps wait for other replicas");
  return &open_[key];
}

bool all_gather_core::end(const step_key& key, const open_step& step) {
  const auto own = static_cast<std::size_t>(std::ranges::count(owners_, rank_));
  if (!step.sent || step.arrived.size() + own < owners_.size()) return false;
  last_ = key;
  open_.erase(key);
  return true;
}

result<bool> all_gather_core::sent(const step_key& key) {
  const auto what = "the own parameters for " + to_string(key);
  const auto step = open(key, what);
  if (!step) return tl::unexpected(step.error());
  if ((*step)->sent) return fail(errc::bad_frame, what + " were sent twice");
  (*step)->sent = true;
  return end(key, **step);
}

result<bool> all_gather_core::arrived(const step_key& key, std::size_t bucket, std::uint32_t from) {
  const auto what = "parameters of replica " + std::to_string(from) + ", bucket " +
                    std::to_string(bucket) + ", for " + to_string(key);
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame,
                what + ": that is none of the other " + std::to_string(ranks_ - 1) + " replicas");
  if (bucket >= owners_.size())
    return fail(errc::bad_frame,
                what + ": there are " + std::to_string(owners_.size()) + " buckets");
  if (owners_[bucket] != from)
    return fail(errc::bad_frame,
                what + ": that one belongs to replica " + std::to_string(owners_[bucket]));
  if (again_.erase({key, bucket}) > 0) return false;
  const auto step = open(key, what);
  if (!step) return tl::unexpected(step.error());
  if (!(*step)->arrived.insert(bucket).second) return fail(errc::bad_frame, what + " came twice");
  return end(key, **step);
}

void all_gather_core::start_over(std::uint32_t rank, const step_key& from) {
  std::erase_if(again_, [&](const auto& each) { return owners_[each.second] == rank; });
  for (std::size_t next = 0; const auto owner : owners_) {
    const auto bucket = next++;
    if (owner != rank) continue;
    if (last_ && *last_ >= from) again_.emplace(*last_, bucket);
    for (auto each = open_.lower_bound(from); each != open_.end(); ++each)
      if (each->second.arrived.contains(bucket)) again_.emplace(each->first, bucket);
  }
}

result<void> all_gather_core::lost(std::uint32_t rank) {
  lost_ = rank;
  if (open_.empty()) return {};
  return tl::unexpected(without_part_of(rank));
}

}  // namespace troupe::engine
