#include "engine/step/stage_core.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

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

std::set<stage_core::place>& stage_core::arrivals::of(edge what) {
  return what == edge::input ? inputs : what == edge::target ? targets : gradients;
}

result<stage_effects> stage_core::begin(run_step step) {
  if (announced_ && step.key <= *announced_) return stale(step.key, *announced_, "an announcement");
  const bool new_epoch = announced_ && step.key.epoch > announced_->epoch;
  if (!new_epoch && queue_.size() == max_queued_steps)
    return fail(errc::bad_frame, to_string(step.key) + " is announced while " +
                                     std::to_string(max_queued_steps) + " steps are queued");
  queued_step made{.key = step.key,
                   .kind = step.plan->kind(),
                   .is_first = step.is_first,
                   .is_last = step.is_last,
                   .chunks = step.plan->chunks(),
                   .microbatches = step.plan->microbatches(),
                   .progress = plan_progress(std::move(step.plan))};
  auto here = take_early(made);
  if (!here) return tl::unexpected(here.error());
  made.here = std::move(*here);
  if (new_epoch) {
    queue_.clear();
    past_.clear();
    again_.clear();
  }
  open_edges(made.chunks, made.key.epoch, new_epoch || !announced_);
  announced_ = made.key;
  early_.erase(early_.begin(), early_.upper_bound(*announced_));
  queue_.push_back(std::move(made));
  return advance();
}

void stage_core::open_edges(std::uint32_t chunks, epoch_id epoch, bool is_new) {
  if (is_new) edges_.clear();
  while (edges_.size() < chunks) {
    edges_.push_back({credited_queue(credits_), credited_queue(credits_)});
    edges_.back().outputs.start_epoch(epoch);
    edges_.back().gradients.start_epoch(epoch);
  }
}

result<stage_core::arrivals> stage_core::take_early(const queued_step& step) {
  const auto found = early_.find(step.key);
  if (found == early_.end()) return arrivals{};
  arrivals here = std::move(found->second);
  early_.erase(found);
  for (const edge what : {edge::input, edge::target, edge::gradient})
    for (const place& which : here.of(what))
      if (auto good = fits(what, step, which); !good) return tl::unexpected(good.error());
  return here;
}

result<stage_effects> stage_core::arrived(edge what, const step_key& key, const place& which) {
  const auto& [chunk, microbatch] = which;
  if (again_.erase({what, key, which}) == 1)
    return stage_effects{grant_credit{key, what, microbatch, chunk}};
  queued_step* announced = find(key);
  if (!announced && announced_ && key <= *announced_)
    return stale(key, *announced_,
                 std::string("the ") + name(what) + " of micro-batch " + number(microbatch));
  if (announced) {
    if (auto good = fits(what, *announced, which); !good) return tl::unexpected(good.error());
  } else {
    if (microbatch.value >= max_microbatches || chunk >= max_chunks)
      return fail(errc::bad_frame, to_string(key) + ": micro-batch " + number(microbatch) +
                                       " of chunk " + std::to_string(chunk) + " is out of range");
    if (auto good = admit_early(key); !good) return tl::unexpected(good.error());
  }
  if (!(announced ? announced->here : early_[key]).of(what).insert(which).second)
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

result<void> stage_core::fits(edge what, const queued_step& step, const place& which) {
  const auto& [chunk, microbatch] = which;
  const std::string where = to_string(step.key);
  if (microbatch.value >= step.microbatches)
    return fail(errc::bad_frame, where + ": the " + name(what) + " of micro-batch " +
                                     number(microbatch) + " is out of range, the step has " +
                                     std::to_string(step.microbatches));
  if (chunk >= step.chunks)
    return fail(errc::bad_frame, where + ": the " + name(what) + " is for chunk " +
                                     std::to_string(chunk) + ", the stage has " +
                                     std::to_string(step.chunks));
  if (what == edge::target && !step.ends_model(chunk))
    return fail(errc::bad_frame, where + ": targets belong to the last stage");
  if (what == edge::gradient && step.ends_model(chunk))
    return fail(errc::bad_frame, where + ": the last stage takes no gradients");
  if (what == edge::gradient && step.kind == step_kind::evaluation)
    return fail(errc::bad_frame, where + ": an evaluation step has no gradients");
  return {};
}

std::string stage_core::named(const action& what) const {
  return to_string(what, static_cast<std::uint32_t>(edges_.size()));
}

result<void> stage_core::runs(const step_key& key, const action& what, const char* event) const {
  if (running_ == start_action{key, what}) return {};
  const bool over =
      std::ranges::none_of(queue_, [&](const queued_step& queued) { return queued.key == key; });
  if (announced_ && key <= *announced_ && over) return stale(key, *announced_, named(what) + event);
  return fail(errc::bad_frame,
              named(what) + " of " + to_string(key) + event + ", but it was not running");
}

result<stage_effects> stage_core::output_ready(const step_key& key, const action& what) {
  if (auto good = runs(key, what, " has its output"); !good) return tl::unexpected(good.error());
  if (what.kind == action_kind::weight_gradient)
    return fail(errc::bad_frame, named(what) + " of " + to_string(key) + " has no output");
  if (passed_on_)
    return fail(errc::bad_frame, named(what) + " of " + to_string(key) + " has its output twice");
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
  if (what.kind == action_kind::weight_gradient) return;
  const bool is_forward = what.kind == action_kind::forward;
  if (is_forward ? step.ends_model(what.chunk) : step.starts_model(what.chunk)) return;
  auto& [outputs, gradients] = edges_[what.chunk];
  for (const auto& due :
       (is_forward ? outputs : gradients).offer({step.key, what.microbatch}, logs_))
    effects.emplace_back(send_output{due.key, is_forward ? edge::input : edge::gradient,
                                     due.microbatch, what.chunk});
}

result<stage_effects> stage_core::credit_arrived(edge on, const step_key& key,
                                                 microbatch_id microbatch, std::uint32_t chunk) {
  if (on == edge::target)
    return fail(errc::bad_frame, to_string(key) + ": a stage sends no targets");
  if (chunk >= edges_.size())
    return fail(errc::bad_frame, to_string(key) + ": a credit for chunk " + std::to_string(chunk) +
                                     ", the stage has " + std::to_string(edges_.size()));
  auto& [outputs, gradients] = edges_[chunk];
  const auto due = (on == edge::input ? outputs : gradients).credited({key, microbatch});
  if (!due) return tl::unexpected(due.error());
  stage_effects effects;
  for (const auto& next : *due)
    effects.emplace_back(send_output{next.key, on, next.microbatch, chunk});
  advance(effects);
  return effects;
}

result<stage_effects> stage_core::update_done(const step_key& key) {
  const queued_step* step = find(key);
  if (!step && announced_ && key <= *announced_) return stale(key, *announced_, "an update");
  if (!step || !step->awaits_update)
    return fail(errc::bad_frame, "an update for " + to_string(key) + ", which awaits none");
  end_front();
  return advance();
}

void stage_core::end_front() {
  const auto& over = queue_.front();
  if (logs_) past_.push_back({over.key, over.kind, over.microbatches});
  queue_.pop_front();
}

void stage_core::start_over(const shared_edges& which, const step_key& from) {
  for (const auto chunk : which.after) {
    expect_again(edge::gradient, chunk, from);
    if (chunk < edges_.size()) edges_.at(chunk).outputs.start_over(from);
  }
  for (const auto chunk : which.before) {
    expect_again(edge::input, chunk, from);
    if (chunk < edges_.size()) edges_.at(chunk).gradients.start_over(from);
  }
  if (which.data) expect_again(edge::input, *which.data, from);
  if (which.labels) expect_again(edge::target, *which.labels, from);
}

// Of each step the first micro-batches are used; what came of others comes again.
void stage_core::expect_again(edge what, std::uint32_t chunk, const step_key& from) {
  std::erase_if(again_, [&](const repeat& each) {
    return std::get<edge>(each) == what && std::get<place>(each).first == chunk;
  });
  const auto expect = [&](const auto& step, std::size_t count) {
    if (step.key < from || (what == edge::gradient && step.kind == step_kind::evaluation)) return;
    for (std::uint32_t i = 0; i < count; ++i) again_.insert({what, step.key, {chunk, {i}}});
  };
  const auto forget = [&](arrivals& here, std::size_t used) {
    std::erase_if(here.of(what), [&](const place& which) {
      return which.first == chunk && which.second.value >= used;
    });
  };
  for (const auto& step : past_) expect(step, step.microbatches);
  for (auto& step : queue_) {
    const auto used = what == edge::gradient ? step.progress.gradients_started(chunk)
                                             : step.progress.forwards_started(chunk);
    forget(step.here, used);
    expect(step, used);
  }
  for (auto& [key, here] : early_) forget(here, 0);
  std::erase_if(early_, [](const auto& each) {
    return each.second.inputs.empty() && each.second.targets.empty() &&
           each.second.gradients.empty();
  });
}

stage_effects stage_core::resume() {
  stage_effects effects;
  for (std::uint32_t chunk = 0; chunk < edges_.size(); ++chunk) {
    auto& [outputs, gradients] = edges_[chunk];
    for (const auto& due : outputs.resume())
      effects.emplace_back(send_output{due.key, edge::input, due.microbatch, chunk});
    for (const auto& due : gradients.resume())
      effects.emplace_back(send_output{due.key, edge::gradient, due.microbatch, chunk});
  }
  advance(effects);
  return effects;
}

void stage_core::forget(const step_key& key) {
  std::erase_if(past_, [&](const past_step& each) { return each.key == key; });
  for (auto& [outputs, gradients] : edges_) {
    outputs.forget(key);
    gradients.forget(key);
  }
}

bool stage_core::holds(edge on, const step_key& key, microbatch_id microbatch,
                       std::uint32_t chunk) const {
  if (chunk >= edges_.size()) return false;
  const auto& [outputs, gradients] = edges_.at(chunk);
  return (on == edge::input ? outputs : gradients).holds({key, microbatch});
}

void stage_core::forget_before(const step_key& first) {
  while (!past_.empty() && past_.front().key < first) past_.pop_front();
  for (auto& [outputs, gradients] : edges_) {
    outputs.forget_before(first);
    gradients.forget_before(first);
  }
}

stage_core::queued_step* stage_core::find(const step_key& key) {
  const auto found =
      std::ranges::find(queue_, key, [](const queued_step& queued) { return queued.key; });
  return found == queue_.end() ? nullptr : &*found;
}

std::optional<edge> stage_core::missing(const queued_step& step, const action& what) {
  const place which{what.chunk, what.microbatch};
  const bool ends_model = step.ends_model(what.chunk);
  if (what.kind == action_kind::weight_gradient) return std::nullopt;
  if (what.kind != action_kind::forward) {
    if (ends_model || step.here.gradients.contains(which)) return std::nullopt;
    return edge::gradient;
  }
  if (!step.here.inputs.contains(which)) return edge::input;
  if (ends_model && !step.here.targets.contains(which)) return edge::target;
  return std::nullopt;
}

bool stage_core::lacks_credit(const queued_step& step, const action& what) const {
  return step.kind == step_kind::evaluation && step.chunks == 1 && !step.ends_model(what.chunk) &&
         !edges_[what.chunk].outputs.open();
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
    if (!front.progress.complete()) {
      const auto best = front.progress.best(
          [&](const action& what) { return !missing(front, what) && !lacks_credit(front, what); },
          how_);
      if (best) start(front, *best, effects);
      return;
    }
    if (front.awaits_update) return;
    effects.emplace_back(step_finished{front.key, front.kind});
    if (front.kind == step_kind::training)
      front.awaits_update = true;
    else
      end_front();
  }
}

void stage_core::start(queued_step& step, const action& what, stage_effects& effects) {
  step.progress.start(what);
  running_ = start_action{step.key, what};
  effects.emplace_back(*running_);
  const auto grant = [&](edge from) {
    effects.emplace_back(grant_credit{step.key, from, what.microbatch, what.chunk});
  };
  const bool ends_model = step.ends_model(what.chunk);
  if (what.kind == action_kind::forward) {
    grant(edge::input);
    if (ends_model) grant(edge::target);
  } else if (what.kind != action_kind::weight_gradient && !ends_model) {
    grant(edge::gradient);
  }
}

std::string stage_core::waiting_for() const {
  if (running_) return to_string(running_->key) + ": " + named(running_->what) + " runs";
  if (queue_.empty()) return "no step is announced";
  const queued_step& front = queue_.front();
  const std::string where = to_string(front.key);
  if (front.awaits_update) return where + " waits for its optimizer update";
  const action& next = front.progress.next();
  const auto what = missing(front, next);
  return where + ": " + named(next) + " waits for " +
         (what ? std::string("its ") + name(*what) : "a credit of the next stage");
}

}  // namespace troupe::engine
