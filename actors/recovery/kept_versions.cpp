#include "actors/recovery/kept_versions.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace troupe::actors {

result<std::optional<std::vector<engine::named_tensor>>> kept_versions::assemble(
    std::uint64_t step, bool is_update, const tensor_piece& piece) {
  if (piece.begin == list_place{})
    begun_.emplace(begun_version{.step = step, .is_update = is_update});
  if (!begun_ || begun_->step != step || begun_->is_update != is_update)
    return fail(errc::bad_frame,
                "a piece of the version of step " + std::to_string(step) + ", which has not begun");
  if (auto added = begun_->parts.add(piece); !added) return tl::unexpected(added.error());
  std::ranges::move(begun_->parts.take(), std::back_inserter(begun_->whole));
  if (!begun_->parts.complete()) return std::nullopt;
  std::optional whole(std::move(begun_->whole));
  begun_.reset();
  return whole;
}

result<void> kept_versions::add(std::uint64_t step, const tensor_piece& piece) {
  auto whole = assemble(step, false, piece);
  if (!whole) return tl::unexpected(whole.error());
  if (*whole) keep(step, std::move(**whole));
  return {};
}

result<std::optional<std::vector<engine::named_tensor>>> kept_versions::add_to_update(
    std::uint64_t step, const tensor_piece& piece) {
  return assemble(step, true, piece);
}

void kept_versions::keep(std::uint64_t step, std::vector<engine::named_tensor> whole) {
  versions_.erase(versions_.upper_bound(step), versions_.end());
  versions_.insert_or_assign(step, std::move(whole));
  while (versions_.size() > most) versions_.erase(versions_.begin());
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
