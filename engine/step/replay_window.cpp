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

std::vector<step_key> replay_window::done_before(const step_key& first) {
  const auto end = std::ranges::lower_bound(evaluations_, first);
  std::vector<step_key> over(evaluations_.begin(), end);
  evaluations_.erase(evaluations_.begin(), end);
  return over;
}

bool replay_window::contains(const step_key& key) const {
  return std::ranges::any_of(steps_, [&](const auto& each) { return each.second == key; }) ||
         std::ranges::binary_search(evaluations_, key);
}

std::optional<std::uint64_t> newest_common(const std::vector<std::vector<std::uint64_t>>& of_stages,
                                           std::uint64_t last) {
  if (of_stages.empty()) return std::nullopt;
  std::optional<std::uint64_t> newest;
  for (const auto step : of_stages.front()) {
    if (step > last) continue;
    const bool is_common = std::ranges::all_of(of_stages, [step](const auto& steps) {
      return std::ranges::find(steps, step) != steps.end();
    });
    if (is_common) newest = std::max(newest.value_or(step), step);
  }
  return newest;
}

std::optional<std::uint64_t> version_for(const lost_stages& all) {
  auto first = all.begun;
  for (const auto each : all.unanswered) first = std::min(first, each);
  if (first == 0) return std::nullopt;
  return newest_common(all.versions, first - 1);
}

}  // namespace troupe::engine
