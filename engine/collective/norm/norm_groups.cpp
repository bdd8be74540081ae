#include "engine/collective/norm/norm_groups.hpp"

#include <algorithm>

namespace troupe::engine {

std::uint32_t norm_groups::count_of(std::uint32_t rank) const {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < own_; ++i) most = std::max(most, shares_[rank * own_ + i]);
  return most;
}

std::vector<group_member> norm_groups::members(std::uint32_t group) const {
  std::vector<group_member> all;
  std::uint32_t of_batch = 0, own = 0;
  for (std::size_t logical = 0; logical < shares_.size(); ++logical) {
    const auto share = shares_[logical];
    const bool is_own = logical / own_ == rank_;
    if (is_own && group < share)
      all.push_back({.logical = logical - rank_ * own_,
                     .microbatch = {own + group},
                     .of_batch = of_batch + group,
                     .counts = logical == 0});
    of_batch += share;
    if (is_own) own += share;
  }
  return all;
}

std::vector<std::uint32_t> norm_groups::ranks_of(std::uint32_t group) const {
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    if (group < count_of(rank)) all.push_back(rank);
  return all;
}

}  // namespace troupe::engine
