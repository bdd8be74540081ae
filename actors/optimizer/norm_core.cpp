#include "actors/optimizer/norm_core.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::actors {

result<std::optional<double>> norm_core::add(std::uint64_t update, std::uint32_t stage,
                                             std::vector<double> squares) {
  const std::string what =
      "stage " + std::to_string(stage) + "'s part of the norm of update " + std::to_string(update);
  if (stage >= stages_)
    return fail(errc::bad_frame, what + ": there are " + std::to_string(stages_) + " stages");
  if (last_[stage] && update <= *last_[stage])
    return fail(errc::stale,
                what + " came twice, or after that of update " + std::to_string(*last_[stage]));
  auto found = open_.find(update);
  if (found == open_.end()) {
    if (open_.size() >= max_open)
      return fail(errc::bad_frame, what + ": too many updates wait for other stages");
    found = open_.emplace(update, stages_).first;
  }
  auto& parts = found->second;
  parts[stage] = std::move(squares);
  last_[stage] = update;
  if (!std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); }))
    return std::nullopt;
  double sum = 0;
  for (const auto& part : parts)
    for (const double each : *part) sum += each;
  open_.erase(found);
  return sum;
}

}  // namespace troupe::actors
