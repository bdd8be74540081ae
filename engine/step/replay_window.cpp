#include "engine/step/replay_window.hpp"

#include <algorithm>

namespace troupe::engine {

void replay_window::begun(std::uint64_t number, const step_key& key) {
  if (!first_version_) first_version_ = number - 1;
  steps_.emplace_back(number, key);
}

std::optional<step_key> replay_window::decided(std::uint64_t number) {
  if (!first_version_ || number <= *first_version_) return std::nullopt;
  const auto kept = *first_version_ + (number - 1 - *first_version_) / accumulate_ * accumulate_;
  while (!steps_.empty() && steps_.front().first <= kept) steps_.pop_front();
  if (steps_.empty()) return std::nullopt;
  return steps_.front().second;
}

bool replay_window::contains(const step_key& key) const {
  return std::ranges::any_of(steps_, [&](const auto& each) { return each.second == key; });
}

}  // namespace troupe::engine
