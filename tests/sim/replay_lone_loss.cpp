#include <iterator>
#include <memory>

#include "tests/sim/replay_company.hpp"

// What the trainer does where one stage alone is lost: another process does its last steps again.

namespace troupe::tests {

using namespace engine;

/// The loss is known, also where the steps under way have its answers: there is one, or there is
/// nothing to do.
void replay_company::notice(std::uint32_t stage) {
  if (finished_ == sequence_.size()) return static_cast<void>(lost_.reset());
  is_replacing_ = true;
  after(a_delay(), [this, stage] { replace(stage); });
}

void replay_company::replace(std::uint32_t stage) {
  if (is_any_unnoticed()) return;  // that will be noticed, and all go back
  const auto second = static_cast<std::uint32_t>(second_[stage]);
  const auto& versions =
      stages_ == 1 ? keeps_here_[stage] : keepers_.at({second, keeper_starts_[second]})[stage];
  const auto id = process_id{stage, ++starts_[stage]};
  open_keeper(stage);
  auto due = trained_;
  for (auto i = announced_; i > finished_; --i) {
    const auto& each = sequence_[i - 1];
    for (std::uint32_t place = 0; place < stages_; ++place) {
      const bool counts =
          place == stage || (options_.shares_state && stage_of(place) == stage_of(stage));
      if (counts && !answers_[each.key].contains(place)) due = std::min(each.number, trained_);
    }
    if (!each.trains) answers_[each.key].erase(stage);
  }
  const auto newer = versions.lower_bound(due);
  if (newer == versions.begin()) return fall_back("no version");
  const auto [version, weights] = *std::prev(newer);
  if (!order_of(version + 1)) return fall_back("the order is forgotten");
  lost_.reset();
  processes_[id] = std::make_unique<process>(start(stage, id.start, weights));
  auto& made = *processes_[id];
  make_version(made, version);
  forget_evaluations(done_before());
  if (!sequence_[finished_].trains) ++in_evaluations_;
  for (const auto& [key, what] : orders_)
    if (what.number > version) begin(made, what, {});
  tell_others(stage, order_of(version + 1)->key);
}

void replay_company::tell_others(std::uint32_t stage, const step_key& from) {
  const auto over = done_before();
  const auto missing = std::make_shared<std::uint32_t>(stages_ - 1);
  if (*missing == 0) return resume_others(stage, from);
  for (std::uint32_t other = 0; other < stages_; ++other)
    if (other != stage)
      post_in_order(other, [this, stage, from, over, missing](process& there) {
        forget_evaluations(there, over);
        replace_at(there, stage, from);
        if (--*missing == 0)
          after(a_delay(), in_this_era([this, stage, from] { resume_others(stage, from); }));
      });
}

void replay_company::replace_at(process& at, std::uint32_t stage, const step_key& from) {
  if (!at.window.reaches(from)) return fall_back("what was sent is forgotten");
  shared_edges which;
  for (std::uint32_t chunk = 0; chunk < layout_.chunks; ++chunk) {
    const auto here = layout_.virtual_stage_of({stage_of(at.self.stage), chunk});
    if (here > 0 && slice_beside(at.self.stage, here - 1).stage == stage)
      which.before.push_back(chunk);
    if (here + 1 < layout_.virtual_stages() && slice_beside(at.self.stage, here + 1).stage == stage)
      which.after.push_back(chunk);
  }
  const bool is_tied = shares_tie(at.self.stage) && other_end(at.self.stage) == stage;
  const bool is_replica = stage_of(at.self.stage) == stage_of(stage);
  const bool is_near = !which.before.empty() || !which.after.empty() || is_tied || is_replica;
  if (is_near && at.end.waits_before(from)) return fall_back("a neighbour is still replayed");
  at.known[stage] = starts_[stage];
  at.keepers[stage] = keeper_starts_[stage];
  at.core.start_over(which, from);
  if (is_tied) {
    at.end.start_over({tied}, from);
    for (const auto& each : at.sent_ties)
      if (each.key >= from) send_tie(at, each);
  }
  if (is_replica) replace_replica(at, stage, from);
  if (stage == second_[at.self.stage]) store(at, at.stores.replaced(1));
}

void replay_company::resume_others(std::uint32_t stage, const step_key& from) {
  ++replays_;
  is_replacing_ = false;
  return_.replayed();
  for (std::uint32_t other = 0; other < stages_; ++other)
    if (other != stage)
      post_in_order(other, [this](process& there) { perform(there, there.core.resume()); });
  const auto ends_in = [&](std::uint32_t slice) {
    return slice_beside(stage, slice).stage == stage;
  };
  const auto replica = replica_of(stage);
  auto& [inputs, labels] = feeders_[replica];
  if (ends_in(0)) {
    inputs.start_over(from);
    feed(replica, edge::input, inputs.resume());
  }
  if (ends_in(layout_.virtual_stages() - 1)) {
    labels.start_over(from);
    feed(replica, edge::target, labels.resume());
  }
  finish_steps();
}

}  // namespace troupe::tests
