#include "cluster/recovery/return_core.hpp"

#include <algorithm>
#include <utility>

#include "engine/step/replay_window.hpp"

namespace troupe::cluster {

void return_core::reached(std::uint64_t step) {
  if (step <= reached_) return;
  reached_ = step;
  in_vain_ = 0;
}

bool return_core::begin_replay(std::vector<std::size_t> places) {
  if (places.empty() || in_vain_ == most_in_vain) return false;
  lost_ = std::move(places);
  is_half_mended_ = true;
  return true;
}

std::vector<std::size_t> return_core::replay_listed() {
  ++in_vain_;  // not before: others are often found to be lost one by one
  return std::exchange(lost_, {});
}

return_core::effect return_core::lost(std::vector<std::size_t> places) {
  if (places.empty() && !is_half_mended_) return end_run{reason::nobody_lost};
  if (!places.empty() && in_vain_ == most_in_vain) return end_run{reason::in_vain};
  lost_ = std::move(places);
  return drop_stages{};
}

return_core::effect return_core::listed(const std::vector<std::vector<std::uint64_t>>& of_stages) {
  version_ = engine::newest_common(of_stages, reached_);
  if (!lost_.empty()) ++in_vain_;  // as for a replay
  return replace_lost{std::exchange(lost_, {})};
}

return_core::effect return_core::replaced() {
  if (version_) return end_at(source::versions, *version_);
  return list_checkpoints{};
}

return_core::effect return_core::own_checkpoints(std::vector<std::uint64_t> steps) {
  checkpoints_ = std::move(steps);
  std::ranges::reverse(checkpoints_);
  return read_next();
}

return_core::effect return_core::read_next() {
  if (checkpoints_.empty()) {
    read_.reset();
    return read_beginning{};
  }
  read_ = checkpoints_.back();
  checkpoints_.pop_back();
  return read_checkpoint{*read_};
}

return_core::effect return_core::was_read(bool is_well) {
  if (read_) return is_well ? end_at(source::checkpoint, *read_) : read_next();
  if (is_well) return end_at(source::beginning, 0);
  if (may_begin_anew_) return end_at(source::anew, 0);
  return end_run{reason::no_beginning};
}

return_core::effect return_core::end_at(source from, std::uint64_t step) {
  is_half_mended_ = false;
  return go_on{from, step};
}

}  // namespace troupe::cluster
