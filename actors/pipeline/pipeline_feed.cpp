// How a pipeline's batches come to its two ends, and once more where whoever read them is lost.

#include <algorithm>
#include <caf/send.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/pipeline/pipeline_ask.hpp"

namespace troupe::actors {

result<void> pipeline::choose_feeders(caf::actor_system& system) {
  if (options_.data) return connect_feeders();
  const auto which = open_->next_feeders();
  const auto last = layout_.virtual_stages() - 1;
  for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
    feeders_.push_back(
        spawn_feeder(system, caf::actor_cast<stage_actor>(slice_at(0, replica).stage),
                     caf::actor_cast<stage_actor>(slice_at(last, replica).stage),
                     layout_.slice_at(last).chunk, options_.credits, options_.logs_edges));
    watch_feeder(which);
  }
  return {};
}

result<void> pipeline::connect_feeders() {
  feeders_.clear();
  const auto which = open_->next_feeders();
  const auto last = layout_.virtual_stages() - 1;
  for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
    // It may still be at a batch that it was asked for before.
    const auto connected =
        ask_->request<data_connected>(
                options_.data,
                connect_data{slice_at(0, replica).stage, slice_at(last, replica).stage,
                             layout_.slice_at(last).chunk, options_.credits, replica, grouped(),
                             options_.logs_edges},
                usual_deadlines.read)
            .get();
    if (!connected) return tl::unexpected(connected.error());
    feeders_.push_back(caf::actor_cast<feeder_actor>(connected->feeder));
    watch_feeder(which);
  }
  return {};
}

void pipeline::watch_feeder(std::uint64_t which) {
  caf::actor_cast<caf::abstract_actor*>(feeders_.back())
      ->attach_functor([open = open_, which](const caf::error& reason) {
        if (reason) open->feeder_ended(which, from_caf(reason));
      });
}

void pipeline::note_fed(const deliver_batch& order, const batch_delivered& as) {
  if (!options_.data || !options_.logs_edges) return;
  auto again = order;
  again.left_out = as.left_out;
  fed_.insert_or_assign(order.step, std::pair(std::move(again), as));
}

void pipeline::tell_ends(const engine::step_key& from, const engine::step_key& done_before,
                         const replacements& lost, std::vector<future<acknowledged>>& told) {
  const auto first = layout_.slice_at(0).stage;
  const auto last = layout_.slice_at(layout_.virtual_stages() - 1).stage;
  for (std::size_t place = 0; place < stages_.size(); ++place) {
    const auto stage = place % layout_.stages;
    const bool is_new = std::ranges::find(lost, place, &stage_replacement::stage) != lost.end();
    if (is_new || (stage != first && stage != last)) continue;
    const auto& feeder = feeders_.at(place / layout_.stages);
    told.push_back(
        tell(stages_[place],
             replace_feeder{caf::actor_cast<caf::strong_actor_ptr>(feeder), from, done_before}));
  }
}

/// In the order of steps. The reader reads one after the other, and its feeders send meanwhile.
result<void> pipeline::feed_again(const engine::step_key& from) {
  const auto first = fed_.lower_bound(from);
  std::vector<future<batch_delivered>> read;
  for (auto each = first; each != fed_.end(); ++each)
    read.push_back(
        ask_->request<batch_delivered>(options_.data, each->second.first, usual_deadlines.read));
  auto each = first;
  for (const auto& answer : read) {
    const auto& before = (each++)->second.second;
    const auto now = answer.get();
    if (!now) return tl::unexpected(now.error());
    if (now->samples == before.samples && now->microbatches == before.microbatches) continue;
    return fail(errc::bad_data,
                "the data are not what they were: a batch had " + std::to_string(before.samples) +
                    " samples that could be read, and has " + std::to_string(now->samples));
  }
  return {};
}

}  // namespace troupe::actors
