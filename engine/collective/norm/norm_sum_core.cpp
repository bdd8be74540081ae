#include "engine/collective/norm/norm_sum_core.hpp"

#include <algorithm>
#include <iterator>

namespace troupe::engine {
namespace {

tl::unexpected<error> is_gone(std::uint32_t rank) {
  return fail(errc::peer_lost, "replica " + std::to_string(rank) +
                                   " of it is gone, with which it sums its batch norms");
}

std::string part_of(std::uint32_t rank, const norm_place& at) {
  return "replica " + std::to_string(rank) + "'s part of " + to_string(at);
}

}  // namespace

result<void> norm_sum_core::take(open_sum& sum, std::uint32_t from, norm_sum what,
                                 norm_part part) const {
  const auto due = std::ranges::find(sum.missing, from);
  if (due == sum.missing.end())
    return fail(errc::bad_frame, part_of(from, sum.at) + " came twice, or is not wanted");
  if (what != sum.what || part.size() != sum.size)
    return fail(errc::bad_frame, part_of(from, sum.at) + " has " + std::to_string(part.size()) +
                                     " numbers, and the own one " + std::to_string(sum.size));
  sum.missing.erase(due);
  sum.parts[from] = std::move(part);
  return {};
}

norm_effects norm_sum_core::end_if_complete() {
  if (!open_ || !open_->missing.empty()) return {};
  auto sum = merge_all(open_->what, std::move(open_->parts));
  open_.reset();
  return {norm_summed{std::move(*sum)}};
}

result<norm_effects> norm_sum_core::given(const norm_place& at, norm_sum what, norm_part part,
                                          const std::vector<std::uint32_t>& takers) {
  if (lost_) return is_gone(*lost_);
  if (over_ && at.step <= *over_) return fail(errc::stale, to_string(at) + " is over");
  if (open_) return fail(errc::bad_frame, to_string(at) + " begins before the one before is over");
  open_sum made{.at = at, .what = what, .size = part.size(), .missing = takers, .parts = {}};
  made.parts.resize(ranks_);
  if (auto own = take(made, rank_, what, std::move(part)); !own) return tl::unexpected(own.error());
  norm_effects effects;
  if (!made.missing.empty()) effects.emplace_back(send_norm_part{made.missing});
  for (const auto rank : takers) {
    auto early = early_.extract({rank, at});
    if (!early) continue;
    if (auto fits = take(made, rank, early.mapped().what, std::move(early.mapped().part)); !fits)
      return tl::unexpected(fits.error());
  }
  open_ = std::move(made);
  std::ranges::move(end_if_complete(), std::back_inserter(effects));
  return effects;
}

result<norm_effects> norm_sum_core::arrived(const norm_place& at, std::uint32_t from, norm_sum what,
                                            norm_part part) {
  if (from >= ranks_ || from == rank_)
    return fail(errc::bad_frame, part_of(from, at) + ": there is no such other replica");
  if (lost_) return is_gone(*lost_);
  if (over_ && at.step <= *over_) return fail(errc::stale, part_of(from, at) + ", which is over");
  if (open_ && open_->at == at) {
    if (auto fits = take(*open_, from, what, std::move(part)); !fits)
      return tl::unexpected(fits.error());
    return end_if_complete();
  }
  const auto kept =
      std::ranges::count_if(early_, [from](const auto& each) { return each.first.first == from; });
  if (static_cast<std::size_t>(kept) >= most_early || early_.contains({from, at}))
    return fail(errc::bad_frame, part_of(from, at) + " came twice, or too early");
  early_.emplace(std::pair(from, at), early_part{what, std::move(part)});
  return norm_effects{};
}

result<void> norm_sum_core::lost(std::uint32_t rank) {
  if (!lost_) lost_ = rank;
  if (open_) return is_gone(*lost_);
  return {};
}

void norm_sum_core::step_over(const step_key& step) {
  over_ = step;
  std::erase_if(early_, [&](const auto& each) { return each.first.second.step <= step; });
}

void norm_sum_core::give_up() {
  open_.reset();
  early_.clear();
}

}  // namespace troupe::engine
