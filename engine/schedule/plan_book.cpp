#include "engine/schedule/plan_book.hpp"

#include <algorithm>

namespace troupe::engine {

result<plan_book::entry> plan_book::plan_for(step_kind kind, std::uint32_t microbatches) {
  const auto number_of = [&](auto found) {
    return static_cast<std::uint32_t>(found - kept_.begin());
  };
  const auto known = std::ranges::find_if(kept_, [&](const kept& each) {
    return each.kind == kind && each.microbatches == microbatches;
  });
  ++asked_;
  if (known != kept_.end()) {
    known->asked = asked_;
    return entry{.number = number_of(known)};
  }
  auto made = make_(kind, microbatches);
  if (!made) return tl::unexpected(made.error());
  const auto place = kept_.size() < capacity ? kept_.insert(kept_.end(), kept{})
                                             : std::ranges::min_element(kept_, {}, &kept::asked);
  *place = {kind, microbatches, asked_};
  return entry{.number = number_of(place), .fresh = std::move(*made)};
}

result<std::vector<plan_book::known_plan>> plan_book::all() const {
  std::vector<known_plan> plans;
  for (const auto& [kind, microbatches, asked] : kept_) {
    auto made = make_(kind, microbatches);
    if (!made) return tl::unexpected(made.error());
    plans.push_back({static_cast<std::uint32_t>(plans.size()), kind, std::move(*made)});
  }
  return plans;
}

}  // namespace troupe::engine
