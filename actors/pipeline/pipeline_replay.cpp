// What a pipeline does where one stage alone is lost: another one does its last steps again.

#include <algorithm>
#include <caf/send.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/pipeline_ask.hpp"
#include "engine/step/stage_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

constexpr auto steps_ahead = engine::stage_core::steps_ahead;

/// Whether the stage has given this answer.
bool has_answered(const future<stage_done>& answer) {
  return answer.ready() && answer.get().has_value();
}

/// Of a step that all stages have done, or whose answer came before the stage was lost.
void check_same(const engine::step_key& key, const stage_done& before, const stage_done& again) {
  if (before.losses != again.losses || before.skipped != again.skipped ||
      before.correct != again.correct)
    log::error(engine::to_string(key) +
               " was done again by one stage, and is not what it was before");
}

}  // namespace

// A training step may overtake the answers to an evaluation, so not where both are under way. And a
// step may have been fed that has not begun, for which the stages must wait.
bool pipeline::can_replay() const {
  return order_of(training_steps_) != nullptr &&
         last_step_ <= orders_.rbegin()->first.step.value + steps_ahead &&
         std::ranges::all_of(under_way_, [&](const pending_step& each) {
           return orders_.contains(each.key) && each.kind == under_way_.front().kind;
         });
}

const run_stage* pipeline::order_of(std::uint64_t number) const {
  const auto found = std::ranges::find_if(orders_, [&](const auto& each) {
    const auto& order = each.second.front();
    return order.kind == engine::step_kind::training && order.number == number;
  });
  return found == orders_.end() ? nullptr : &found->second.front();
}

void pipeline::remember(const std::vector<run_stage>& runs) {
  if (!options_.logs_edges) return;
  const auto& run = runs.front();
  forget_evaluations(run.done_before);
  if (run.dry_run) return;
  orders_.emplace(run.step, runs);
  if (run.kind == engine::step_kind::training)
    window_.begun(run.number, run.step);
  else
    window_.begun_evaluation(run.step);
}

void pipeline::forget_evaluations(const engine::step_key& done_before) {
  const auto over = window_.done_before(done_before);
  if (over.empty()) return;
  for (const auto& each : over) orders_.erase(each);
  for (const auto& each : feeders_) caf::anon_send(each, forget_fed{{}, over});
}

void pipeline::forget_before(std::uint64_t number) {
  if (!options_.logs_edges) return;
  const auto first = window_.decided(number);
  if (!first) return;
  orders_.erase(orders_.begin(), orders_.lower_bound(*first));
  for (const auto& each : feeders_) caf::anon_send(each, forget_fed{*first, {}});
}

/// Of replicas that share out the update, each may still lack what the lost one sent behind the
/// decision: its step is done again where one of them has not answered it.
bool pipeline::is_done_around(const pending_step& step, std::size_t stage) const {
  if (!shares_state_) return has_answered(step.of_stages.at(stage));
  for (auto at = stage % layout_.stages; at < stages_.size(); at += layout_.stages)
    if (!has_answered(step.of_stages.at(at))) return false;
  return true;
}

/// The newest one that is before the last training step, and not behind an answer that never came.
result<std::uint64_t> pipeline::version_for(const stage_replacement& with) const {
  const auto missing = std::ranges::find_if_not(
      under_way_, [&](const pending_step& each) { return is_done_around(each, with.stage); });
  const auto due =
      missing == under_way_.end() ? training_steps_ : std::min(missing->number, training_steps_);
  const auto after = with.versions.lower_bound(due);
  if (after == with.versions.begin())
    return fail(errc::stale, "no version is kept of the stage before step " + std::to_string(due));
  const auto version = std::prev(after)->first;
  if (!order_of(version + 1))
    return fail(errc::stale, "its newest version is that of step " + std::to_string(version) +
                                 ", and step " + std::to_string(version + 1) +
                                 " is not remembered");
  return version;
}

/// A stage without any micro-batch of a step would end it, and tell its replicas, before they know
/// the stage.
result<void> pipeline::check_shares(std::size_t stage, std::uint64_t version) const {
  for (const auto& [key, runs] : orders_) {
    const auto& run = runs.at(stage / layout_.stages);
    const bool is_empty = std::ranges::all_of(run.shares, [](auto count) { return count == 0; });
    if (run.kind == engine::step_kind::training && run.number > version && is_empty)
      return fail(errc::stale, "its replica has no micro-batch of step " +
                                   std::to_string(run.number) + ", which is to be done again");
  }
  return {};
}

replica_group pipeline::replicas_of(std::uint32_t stage) const {
  replica_group group{.stages = {},
                      .logical = logical_ / replicas_,
                      .shares_state = shares_state_,
                      .synced_norm = synced_norm_};
  for (std::uint32_t replica = 0; replicas_ > 1 && replica < replicas_; ++replica)
    group.stages.push_back(
        caf::actor_cast<caf::strong_actor_ptr>(stages_[replica * layout_.stages + stage]));
  return group;
}

void pipeline::watch(std::size_t place) {
  if (!options_.logs_edges) return;
  caf::actor_cast<caf::abstract_actor*>(stages_.at(place))
      ->attach_functor(
          [open = open_, place, which = open_->watch(place)](const caf::error& reason) {
            if (const auto why = from_caf(reason); reason && why.code == errc::peer_lost)
              open->stage_lost(place, which, why);
          });
}

void pipeline::put_in_place(const stage_replacement& with) {
  stages_.at(with.stage) = with.by;
  watch(with.stage);
  for (auto& each : options_.keepers) std::ranges::replace(each, with.lost_keeper, with.keeper);
}

result<void> pipeline::prepare(const stage_replacement& with, std::uint64_t version) {
  const auto place = static_cast<std::uint32_t>(with.stage);
  const auto stage = place % layout_.stages;
  const auto around = surroundings_of(stage, place / layout_.stages, replicas_of(stage));
  if (auto done = ask<acknowledged>(with.by, around); !done) return tl::unexpected(done.error());
  const adopt_version what{with.versions.at(version), place, version};
  if (auto done = ask<acknowledged>(with.by, what); !done) return tl::unexpected(done.error());
  const auto plans = plans_.all();
  if (!plans) return tl::unexpected(plans.error());
  for (const auto& [number, kind, plan] : *plans) {
    const announce_plan told{number, kind, plan.microbatches, plan.chunks, plan.stages.at(stage)};
    if (auto done = ask<acknowledged>(with.by, told); !done) return tl::unexpected(done.error());
  }
  return {};
}

/// The stage stores the version first, which its votes wait for.
result<void> pipeline::order_again(std::size_t stage, std::uint64_t version) {
  const auto& by = stages_.at(stage);
  const auto scaler = scaler_after(version);
  if (!scaler) return tl::unexpected(scaler.error());
  static_cast<void>(
      ask_->request<acknowledged>(by, take_version{version}, usual_deadlines.transfer));
  std::vector<future<stage_done>> answers;
  for (const auto& [key, runs] : orders_) {
    auto run = runs.at(stage / layout_.stages);
    if (run.number <= version) continue;
    const bool trains = run.kind == engine::step_kind::training;
    if (*scaler && trains && run.number == version + 1) run.loss_scale = (*scaler)->scale;
    auto answer = ask_->request<stage_done>(by, run, usual_deadlines.step);
    answers.push_back(answer);
    const auto pending = std::ranges::find(under_way_, key, &pending_step::key);
    if (pending == under_way_.end()) continue;
    auto& before = pending->of_stages.at(stage);
    const bool is_known = has_answered(before);
    if (is_known)
      answer.when_settled([key = key, before = *before.get()](const auto& again) {
        if (again) check_same(key, before, *again);
      });
    // An evaluation is forgotten when all have answered: not before the new stage has.
    if (is_known && trains) continue;
    before = std::move(answer);
  }
  for (auto& each : under_way_) {
    each.answers = all(each.of_stages);
    open_->add(each.answers);
  }
  for (const auto& each : answers) watch_work(stage, each);
  // Once it is answered the stage has begun the steps.
  return ask<acknowledged>(by, resume_edges{}).map([](const auto&) {});
}

result<void> pipeline::tell_others(const replace_neighbour& what, std::size_t stage) {
  std::vector<future<acknowledged>> told;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    if (i != stage)
      told.push_back(ask_->request<acknowledged>(stages_[i], what, usual_deadlines.transfer));
  if (auto done = all(std::move(told)).get(); !done) return tl::unexpected(done.error());
  std::vector<future<acknowledged>> resumed;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    if (i != stage)
      resumed.push_back(
          ask_->request<acknowledged>(stages_[i], resume_edges{}, usual_deadlines.transfer));
  for (const auto& each : feeders_)
    resumed.push_back(ask_->request<acknowledged>(each, what, usual_deadlines.transfer));
  return all(std::move(resumed)).get().map([](const auto&) {});
}

result<std::uint64_t> pipeline::replay(const stage_replacement& with) {
  const auto version = version_for(with);
  if (!version) return tl::unexpected(version.error());
  if (auto fit = check_shares(with.stage, *version); !fit) return tl::unexpected(fit.error());
  const engine::step_key next{{}, {last_step_}};
  const replace_neighbour what{caf::actor_cast<caf::strong_actor_ptr>(stages_.at(with.stage)),
                               caf::actor_cast<caf::strong_actor_ptr>(with.by),
                               order_of(*version + 1)->step,
                               under_way_.empty() ? next : under_way_.front().key,
                               with.lost_keeper,
                               with.keeper};
  forget_evaluations(what.done_before);
  put_in_place(with);
  auto done = prepare(with, *version)
                  .and_then([&] { return order_again(with.stage, *version); })
                  .and_then([&] { return tell_others(what, with.stage); });
  if (!done) return tl::unexpected(done.error());
  return *version + 1;
}

}  // namespace troupe::actors
