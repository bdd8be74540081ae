#include "engine/collective/all_gather_core.hpp"

#include <string>

namespace troupe::engine {
namespace {

error without_part_of(std::uint32_t rank) {
  return {errc::peer_lost, "replica " + std::to_string(rank) +
                               " of it is gone: its parameters cannot be had without it"};
}

}  // namespace

result<bool> all_gather_core::sent(const step_key& key) {
  return note(key, rank_);
}

result<bool> all_gather_core::arrived(const step_key& key, std::uint32_t from) {
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame, "parameters of replica " + std::to_string(from) + " for " +
                                     to_string(key) + ": that is none of the other " +
                                     std::to_string(ranks_ - 1) + " replicas");
  return note(key, from);
}

result<bool> all_gather_core::note(const step_key& key, std::uint32_t rank) {
  const auto what = "the parameters of replica " + std::to_string(rank) + " for " + to_string(key);
  if (lost_) return tl::unexpected(without_part_of(*lost_));
  if (last_ && key <= *last_) return fail(errc::stale, what + ", which is over");
  if (!open_.contains(key) && open_.size() >= max_open)
    return fail(errc::bad_frame, what + ": too many steps wait for other replicas");
  auto& here = open_[key];
  if (!here.insert(rank).second) return fail(errc::bad_frame, what + " came twice");
  if (here.size() < ranks_) return false;
  last_ = key;
  open_.erase(key);
  return true;
}

result<void> all_gather_core::lost(std::uint32_t rank) {
  lost_ = rank;
  if (open_.empty()) return {};
  return tl::unexpected(without_part_of(rank));
}

}  // namespace troupe::engine
