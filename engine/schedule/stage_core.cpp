#include "engine/schedule/stage_core.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"

namespace troupe::engine {
namespace {

tl::unexpected<error> stale(const step_key& key, const step_key& last, const std::string& what) {
  return fail(errc::stale, what + " for " + to_string(key) + ", which is over: " + to_string(last) +
                               " is the last one announced");
}

std::string number(microbatch_id microbatch) {
  return std::to_string(microbatch.value);
}

}  // namespace

const char* stage_core::name(edge what) {
  switch (what) {
    case edge::input:
      return "input";
    case edge::target:
      return "target";
    case edge::gradient:
      return "gradient";
  }
  return "tensor";
}

std::set<microbatch_id>& stage_core::arrivals::of(edge what) {
  return what == edge::input ? inputs : what == edge::target ? targets : gradients;
}

result<stage_effects> stage_core::begin(run_step step) {
  if (announced_ && step.key <= *announced_) return stale(step.key, *announced_, "an announcement");
  const bool new_epoch = announced_ && step.key.epoch > announced_->epoch;
  if (!new_epoch && queue_.size() == max_queued_steps)
    return fail(errc::bad_frame, to_string(step.key) + " is announced while " +
                                     std::to_string(max_queued_steps) + " steps are queued");
  const auto microbatches = static_cast<std::uint32_t>(std::ranges::count(
      step.plan.actions, action_kind::forward, [](const action& what) { return what.kind; }));
  if (auto good = check_stage(step.plan, {}, microbatches, step.kind); !good)
    return fail(errc::bad_config,
                "the plan of " + to_string(step.key) + " is wrong: " + good.error().text);
  queued_step made{std::move(step), microbatches, 0, false, {}};
  auto here = take_early(made);
  if (!here) return tl::unexpected(here.error());
  made.here = std::move(*here);
  if (new_epoch) queue_.clear();
  if (new_epoch || !announced_) {
    outputs_.start_epoch(made.step.key.epoch);
    gradients_.start_epoch(made.step.key.epoch);
  }
  announced_ = made.step.key;
  early_.erase(early_.begin(), early_.upper_bound(*announced_));
  queue_.push_back(std::move(made));
  return advance();
}

result<stage_core::arrivals> stage_core::take_early(const queued_step& step) {
  const auto found = early_.find(step.step.key);
  if (found == early_.end()) return arrivals{};
  arrivals here = std::move(found->second);
  early_.erase(found);
  for (const edge what : {edge::input, edge::target, edge::gradient})
    for (const microbatch_id microbatch : here.of(what))
      if (auto good = fits(what, step, microbatch); !good) return tl::unexpected(good.error());
  return here;
}

result<stage_effects> stage_core::input_arrived(const step_key& key, microbatch_id microbatch) {
  return arrived(edge::input, key, microbatch);
}

result<stage_effects> stage_core::target_arrived(const step_key& key, microbatch_id microbatch) {
  return arrived(edge::target, key, microbatch);
}

result<stage_effects> stage_core::gradient_arrived(const step_key& key, microbatch_id microbatch) {
  return arrived(edge::gradient, key, microbatch);
}

result<stage_effects> stage_core::arrived(edge what, const step_key& key,
                                          microbatch_id microbatch) {
  queued_step* announced = find(key);
  if (!announced && announced_ && key <= *announced_)
    return stale(key, *announced_,
                 std::string("the ") + name(what) + " of micro-batch " + number(microbatch));
  if (announced) {
    if (auto good = fits(what, *announced, microbatch); !good) return tl::unexpected(good.error());
  } else {
    if (microbatch.value >= max_microbatches)
      return fail(errc::bad_frame,
                  to_string(key) + ": micro-batch " + number(microbatch) + " is out of range");
    if (auto good = admit_early(key); !good) return tl::unexpected(good.error());
  }
  if (!(announced ? announced->here : early_[key]).of(what).insert(microbatch).second)
    return fail(errc::bad_frame, to_string(key) + ": the " + name(what) + " of micro-batch " +
                                     number(microbatch) + " arrived twice");
  return advance();
}

// Bounds what is kept for steps that nobody has announced yet.
result<void> stage_core::admit_early(const step_key& key) {
  if (early_.contains(key)) return {};
  if (announced_ && key.epoch == announced_->epoch) {
    if (key.step.value - announced_->step.value <= steps_ahead) return {};
    return fail(errc::bad_frame, to_string(key) + " is more than " + std::to_string(steps_ahead) +
                                     " steps ahead of " + to_string(*announced_));
  }
  const auto first = early_.lower_bound({key.epoch, {}});
  const auto newer = early_.upper_bound({key.epoch, {std::numeric_limits<std::uint64_t>::max()}});
  if (newer != early_.end())
    return fail(errc::stale,
                to_string(key) + " is over: " + to_string(newer->first) + " has been heard of");
  if (static_cast<std::uint64_t>(std::distance(first, newer)) >= steps_ahead)
    return fail(errc::bad_frame, to_string(key) + " is one of more than " +
                                     std::to_string(steps_ahead) +
                                     " steps that were not announced");
  std::erase_if(early_, [&](const auto& kept) {
    return kept.first.epoch < key.epoch && !(announced_ && kept.first.epoch == announced_->epoch);
  });
  return {};
}

result<void> stage_core::fits(edge what, const queued_step& step, microbatch_id microbatch) {
  const std::string where = to_string(step.step.key);
  if (microbatch.value >= step.microbatches)
    return fail(errc::bad_frame, where + ": the " + name(what) + " of micro-batch " +
                                     number(microbatch) + " is out of range, the step has " +
                                     std::to_string(step.microbatches));
  if (what == edge::target && !step.step.is_last)
    return fail(errc::bad_frame, where + ": targets belong to the last stage");
  if (what == edge::gradient && step.step.is_last)
    return fail(errc::bad_frame, where + ": the last stage takes no gradients");
  if (what == edge::gradient && step.step.kind == step_kind::evaluation)
    return fail(errc::bad_frame, where + ": an evaluation step has no gradients");
  return {};
}

result<void> stage_core::runs(const step_key& key, const action& what, const char* event) const {
  if (running_ == start_action{key, what}) return {};
  const bool over = std::ranges::none_of(
      queue_, [&](const queued_step& queued) { return queued.step.key == key; });
  if (announced_ && key < *announced_ && over)
    return stale(key, *announced_, to_string(what) + event);
  return fail(errc::bad_frame,
              to_string(what) + " of " + to_string(key) + event + ", but it was not running");
}

result<stage_effects> stage_core::output_ready(const step_key& key, const action& what) {
  if (auto good = runs(key, what, " has its output"); !good) return tl::unexpected(good.error());
  if (passed_on_)
    return fail(errc::bad_frame,
                to_string(what) + " of " + to_string(key) + " has its output twice");
  passed_on_ = true;
  stage_effects effects;
  if (const queued_step* step = find(key)) pass_on(*step, what, effects);
  return effects;
}

result<stage_effects> stage_core::action_done(const step_key& key, const action& what) {
  if (auto good = runs(key, what, " is done"); !good) return tl::unexpected(good.error());
  stage_effects effects;
  if (const queued_step* step = find(key); step && !passed_on_) pass_on(*step, what, effects);
  running_.reset();
  passed_on_ = false;
  advance(effects);
  return effects;
}

void stage_core::pass_on(const queued_step& step, const action& what, stage_effects& effects) {
  const step_key& key = step.step.key;
  if (what.kind == action_kind::forward) {
    if (!step.step.is_last) effects.emplace_back(send_output{key, what});
  } else if (!step.step.is_first) {
    for (const auto& due : gradients_.offer({key, what.microbatch}))
      effects.emplace_back(send_output{due.key, {action_kind::backward, due.microbatch}});
  }
}

result<stage_effects> stage_core::credit_arrived(edge on, const step_key& key,
                                                 microbatch_id microbatch) {
  if (on == edge::target)
    return fail(errc::bad_frame, to_string(key) + ": a stage sends no targets");
  if (on == edge::input) {
    if (auto good = outputs_.credited({key, microbatch}); !good)
      return tl::unexpected(good.error());
    return advance();
  }
  const auto due = gradients_.credited({key, microbatch});
  if (!due) return tl::unexpected(due.error());
  stage_effects effects;
  for (const auto& next : *due)
    effects.emplace_back(send_output{next.key, {action_kind::backward, next.microbatch}});
  return effects;
}

result<stage_effects> stage_core::update_done(const step_key& key) {
  const queued_step* step = find(key);
  if (!step && announced_ && key <= *announced_) return stale(key, *announced_, "an update");
  if (!step || !step->awaits_update)
    return fail(errc::bad_frame, "an update for " + to_string(key) + ", which awaits none");
  queue_.pop_front();
  return advance();
}

stage_core::queued_step* stage_core::find(const step_key& key) {
  const auto found =
      std::ranges::find(queue_, key, [](const queued_step& queued) { return queued.step.key; });
  return found == queue_.end() ? nullptr : &*found;
}

std::optional<edge> stage_core::missing(const queued_step& step) {
  const action& what = step.step.plan.actions[step.next];
  if (what.kind == action_kind::backward) {
    if (step.step.is_last || step.here.gradients.contains(what.microbatch)) return std::nullopt;
    return edge::gradient;
  }
  if (!step.here.inputs.contains(what.microbatch)) return edge::input;
  if (step.step.is_last && !step.here.targets.contains(what.microbatch)) return edge::target;
  return std::nullopt;
}

bool stage_core::lacks_credit(const queued_step& step) const {
  const action& what = step.step.plan.actions[step.next];
  return what.kind == action_kind::forward && !step.step.is_last && !outputs_.open();
}

stage_effects stage_core::advance() {
  stage_effects effects;
  advance(effects);
  return effects;
}

// Starts what can start; called after every event.
void stage_core::advance(stage_effects& effects) {
  while (!running_ && !queue_.empty()) {
    queued_step& front = queue_.front();
    if (front.next < front.step.plan.actions.size()) {
      if (missing(front) || lacks_credit(front)) return;
      return start_next(front, effects);
    }
    if (front.awaits_update) return;
    effects.emplace_back(step_finished{front.step.key, front.step.kind});
    if (front.step.kind == step_kind::training)
      front.awaits_update = true;
    else
      queue_.pop_front();
  }
}

void stage_core::start_next(queued_step& step, stage_effects& effects) {
  const step_key& key = step.step.key;
  const action& what = step.step.plan.actions[step.next++];
  running_ = start_action{key, what};
  effects.emplace_back(*running_);
  const auto grant = [&](edge from) {
    effects.emplace_back(grant_credit{key, from, what.microbatch});
  };
  if (what.kind == action_kind::backward) {
    if (!step.step.is_last) grant(edge::gradient);
    return;
  }
  if (!step.step.is_last) outputs_.spend({key, what.microbatch});
  grant(edge::input);
  if (step.step.is_last) grant(edge::target);
}

std::string stage_core::waiting_for() const {
  if (running_) return to_string(running_->key) + ": " + to_string(running_->what) + " runs";
  if (queue_.empty()) return "no step is announced";
  const queued_step& front = queue_.front();
  const std::string where = to_string(front.step.key);
  if (front.awaits_update) return where + " waits for its optimizer update";
  const auto what = missing(front);
  return where + ": " + to_string(front.step.plan.actions[front.next]) + " waits for " +
         (what ? std::string("its ") + name(*what) : "a credit of the next stage");
}

}  // namespace troupe::engine
