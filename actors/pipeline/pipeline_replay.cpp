// What a pipeline does where stages are lost: others do their last steps again.

#include <algorithm>
#include <caf/send.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/pipeline/pipeline_ask.hpp"
#include "engine/step/replay_window.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

/// Whether the stage has given this answer.
bool has_answered(const future<stage_done>& answer) {
  return answer.ready() && answer.get().has_value();
}

/// NaN is NaN.
bool are_same(const std::vector<std::vector<double>>& some,
              const std::vector<std::vector<double>>& others) {
  const auto is_same = [](double one, double other) {
    return one == other || (std::isnan(one) && std::isnan(other));
  };
  return std::ranges::equal(some, others, [&](const auto& one, const auto& other) {
    return std::ranges::equal(one, other, is_same);
  });
}

/// Of a step that all stages have done, or whose answer came before the stage was lost.
void check_same(const engine::step_key& key, const stage_done& before, const stage_done& again) {
  if (before.losses != again.losses || before.skipped != again.skipped ||
      !are_same(before.metrics, again.metrics))
    log::error(engine::to_string(key) +
               " was done again by one stage, and is not what it was before");
}

bool is_among(std::size_t place, const std::vector<stage_replacement>& lost) {
  return std::ranges::find(lost, place, &stage_replacement::stage) != lost.end();
}

/// Waits for all answers, also where one is an error: what was told is known then wherever it is
/// not refused. Errors: a refusal, or else the loss of a stage.
result<void> answered_by_all(const std::vector<future<acknowledged>>& answers) {
  result<void> outcome;
  for (const auto& each : answers) {
    const auto answer = each.get();
    if (!answer && (outcome || outcome.error().code == errc::peer_lost))
      outcome = tl::unexpected(answer.error());
  }
  return outcome;
}

}  // namespace

void pipeline::leave_out_spare_keeper() {
  if (!options_.spare_keeper) return;
  for (auto& each : options_.keepers) std::erase(each, options_.spare_keeper);
  options_.spare_keeper = nullptr;
}

// A training step may overtake the answers to an evaluation, so not where both are under way. And a
// step may have been fed that has not begun, for which the stages must wait.
bool pipeline::can_replay() const {
  return order_of(training_steps_) != nullptr &&
         last_step_ <= orders_.rbegin()->first.step.value + engine::steps_ahead &&
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
    window_->begun(run.number, run.step);
  else
    window_->begun_evaluation(run.step);
}

void pipeline::forget_evaluations(const engine::step_key& done_before) {
  const auto over = window_->done_before(done_before);
  if (over.empty()) return;
  forget_fed what;
  for (const auto& each : over) {
    orders_.erase(each);
    fed_.erase(each);
    what.evaluations.push_back({each});
  }
  for (const auto& each : feeders_) caf::anon_send(each, what);
}

void pipeline::forget_before(std::uint64_t number) {
  if (!options_.logs_edges) return;
  const auto first = window_->decided(number);
  if (!first) return;
  orders_.erase(orders_.begin(), orders_.lower_bound(*first));
  fed_.erase(fed_.begin(), fed_.lower_bound(*first));
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

/// No step is decided from now on that one of them has not voted on again: others forget nothing
/// that it may need.
result<void> pipeline::replace_voters(const replacements& lost) {
  std::vector<future<acknowledged>> told;
  for (const auto& each : lost)
    told.push_back(tell(coordinator_, replace_voter{{static_cast<std::uint32_t>(each.stage)},
                                                    caf::actor_cast<caf::strong_actor_ptr>(
                                                        stages_.at(each.stage))}));
  return answered_by_all(told);
}

result<std::uint64_t> pipeline::version_for(const replacements& lost) const {
  engine::lost_stages known{.begun = training_steps_};
  for (const auto& with : lost) {
    auto& versions = known.versions.emplace_back();
    for (const auto& [step, keeper] : with.versions) versions.push_back(step);
    for (const auto& step : under_way_)
      if (!is_done_around(step, with.stage)) known.unanswered.push_back(step.number);
  }
  for (const auto& each : repeated_)
    if (!is_among(each.place, lost) && !has_answered(each.answer))
      known.unanswered.push_back(each.number);
  const auto version = engine::version_for(known);
  if (!version)
    return fail(errc::stale, "no version is kept of each lost stage that it can start from");
  if (!order_of(*version + 1))
    return fail(errc::stale, "the newest version that it can start from is that of step " +
                                 std::to_string(*version) + ", and step " +
                                 std::to_string(*version + 1) + " is not remembered");
  return *version;
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
  caf::actor_cast<caf::abstract_actor*>(stages_.at(place))
      ->attach_functor(
          [open = open_, place, which = open_->watch(place)](const caf::error& reason) {
            if (const auto why = from_caf(reason); reason && why.code == errc::peer_lost)
              open->stage_lost(place, which, why);
          });
}

replace_neighbour pipeline::put_in_place(const stage_replacement& with,
                                         const engine::step_key& from,
                                         const engine::step_key& done_before) {
  const auto place = with.stage;
  const known_there before{caf::actor_cast<caf::strong_actor_ptr>(stages_.at(place)),
                           options_.keepers.at(place).front()};
  const auto& known = not_told_.try_emplace(place, before).first->second;
  not_fed_.try_emplace(place, before.stage);
  stages_.at(place) = with.by;
  watch(place);
  for (auto& each : options_.keepers) std::ranges::replace(each, before.keeper, with.keeper);
  std::erase_if(repeated_, [place](const auto& each) { return each.place == place; });
  const bool has_moved = known.keeper != with.keeper;
  return {.lost = known.stage,
          .by = caf::actor_cast<caf::strong_actor_ptr>(with.by),
          .from = from,
          .done_before = done_before,
          .lost_keeper = has_moved ? known.keeper : caf::strong_actor_ptr(),
          .keeper = with.keeper};
}

/// All of them at once, and each knows the others.
result<void> pipeline::prepare(const replacements& lost, std::uint64_t version) {
  const auto plans = plans_.all();
  if (!plans) return tl::unexpected(plans.error());
  std::vector<future<acknowledged>> connected, adopted, planned;
  for (const auto& with : lost) {
    const auto place = static_cast<std::uint32_t>(with.stage);
    const auto stage = place % layout_.stages;
    connected.push_back(
        tell(with.by, surroundings_of(stage, place / layout_.stages, replicas_of(stage))));
  }
  if (auto done = answered_by_all(connected); !done) return done;
  for (const auto& with : lost)
    adopted.push_back(tell(
        with.by,
        adopt_version{with.versions.at(version), static_cast<std::uint32_t>(with.stage), version}));
  if (auto done = answered_by_all(adopted); !done) return done;
  for (const auto& with : lost)
    for (const auto& [number, kind, plan] : *plans)
      planned.push_back(tell(with.by, announce_plan{number, kind, plan.microbatches, plan.chunks,
                                                    plan.stages.at(with.stage % layout_.stages)}));
  return answered_by_all(planned);
}

/// The stage stores the version first, which its votes wait for.
result<void> pipeline::order_again(std::size_t stage, std::uint64_t version) {
  const auto& by = stages_.at(stage);
  const auto scaler = scaler_after(version);
  if (!scaler) return tl::unexpected(scaler.error());
  static_cast<void>(tell(by, take_version{version}));
  std::vector<future<stage_done>> answers;
  for (const auto& [key, runs] : orders_) {
    auto run = runs.at(stage / layout_.stages);
    if (run.number <= version) continue;
    const bool trains = run.kind == engine::step_kind::training;
    if (*scaler && trains && run.number == version + 1) run.loss_scale = (*scaler)->scale;
    auto answer = ask_->request<stage_done>(by, run, usual_deadlines.step);
    answers.push_back(answer);
    if (trains) repeated_.push_back({stage, run.number, answer});
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
  for (const auto& each : answers) watch_work(stage, each);
  // Once it is answered the stage has begun the steps.
  return ask<acknowledged>(by, resume_edges{}).map([](const auto&) {});
}

result<void> pipeline::tell_others(const std::vector<replace_neighbour>& what,
                                   const replacements& lost, bool has_new_feeders) {
  std::vector<future<acknowledged>> told;
  for (std::size_t place = 0; place < stages_.size(); ++place)
    for (const auto& each : what)
      if (!is_among(place, lost)) told.push_back(tell(stages_[place], each));
  not_told_.clear();
  if (has_new_feeders) tell_ends(what.front().from, what.front().done_before, lost, told);
  return answered_by_all(told);
}

/// New feeders are fed after this.
result<void> pipeline::resume(const std::vector<replace_neighbour>& what, const replacements& lost,
                              bool has_new_feeders) {
  std::vector<future<acknowledged>> resumed;
  for (std::size_t place = 0; place < stages_.size(); ++place)
    if (!is_among(place, lost)) resumed.push_back(tell(stages_[place], resume_edges{}));
  for (std::size_t i = 0; !has_new_feeders && i < what.size(); ++i) {
    auto fed = what[i];
    fed.lost = not_fed_.at(lost[i].stage);
    for (const auto& each : feeders_) resumed.push_back(tell(each, fed));
  }
  not_fed_.clear();
  return answered_by_all(resumed);
}

result<std::uint64_t> pipeline::replay(const replacements& lost, const data_actor& reader) {
  const bool has_new_feeders(reader);
  if (auto done = replace_voters(lost); !done) return tl::unexpected(done.error());
  std::erase_if(repeated_, [](const auto& each) { return has_answered(each.answer); });
  const auto version = version_for(lost);
  if (!version) return tl::unexpected(version.error());
  for (const auto& with : lost)
    if (auto fit = check_shares(with.stage, *version); !fit) return tl::unexpected(fit.error());
  const auto from = order_of(*version + 1)->step;
  const engine::step_key next{{}, {last_step_}};
  const auto done_before = under_way_.empty() ? next : under_way_.front().key;
  forget_evaluations(done_before);
  std::vector<replace_neighbour> what;
  for (const auto& with : lost) what.push_back(put_in_place(with, from, done_before));
  if (has_new_feeders) options_.data = reader;
  auto done = has_new_feeders ? connect_feeders() : result<void>();
  if (done) done = prepare(lost, *version);
  for (const auto& with : lost)
    if (done) done = order_again(with.stage, *version);
  for (auto& each : under_way_) {
    each.answers = all(each.of_stages);
    open_->add(each.answers);
  }
  if (done) done = tell_others(what, lost, has_new_feeders);
  if (done) done = resume(what, lost, has_new_feeders);
  if (done && has_new_feeders) done = feed_again(from);
  if (!done) return tl::unexpected(done.error());
  return *version + 1;
}

}  // namespace troupe::actors
