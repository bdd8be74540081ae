#include "actors/recovery/kept_versions.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace troupe::actors {

result<void> kept_versions::add(std::uint64_t step, const tensor_piece& piece) {
  if (piece.begin == list_place{}) begun_.emplace(begun_version{.step = step});
  if (!begun_ || begun_->step != step)
    return fail(errc::bad_frame,
                "a piece of the version of step " + std::to_string(step) + ", which has not begun");
  if (auto added = begun_->parts.add(piece); !added) return added;
  std::ranges::move(begun_->parts.take(), std::back_inserter(begun_->whole));
  if (!begun_->parts.complete()) return {};
  versions_.erase(versions_.upper_bound(step), versions_.end());
  versions_.insert_or_assign(step, std::move(begun_->whole));
  begun_.reset();
  while (versions_.size() > most) versions_.erase(versions_.begin());
  return {};
}

std::vector<std::uint64_t> kept_versions::steps() const {
  std::vector<std::uint64_t> all;
  for (const auto& [step, tensors] : versions_) all.push_back(step);
  return all;
}

result<const std::vector<engine::named_tensor>*> kept_versions::at(std::uint64_t step) const {
  const auto found = versions_.find(step);
  if (found == versions_.end())
    return fail(errc::stale, "there is no version of step " + std::to_string(step));
  return &found->second;
}

}  // namespace troupe::actors
