#include "tests/sim/replay_company.hpp"

#include <algorithm>
#include <iterator>

#include "engine/schedule/plan_checker.hpp"

namespace troupe::tests {

using namespace engine;

namespace {

/// Steps before the first training step: the key of a step is not its number.
constexpr std::uint64_t evaluations = 3;

/// Of an input, or a label.
std::uint64_t sample_of(const step_key& key, microbatch_id microbatch, edge on) {
  return mix({key.step.value, microbatch.value, static_cast<std::uint64_t>(on)});
}

}  // namespace

std::uint64_t mix(std::initializer_list<std::uint64_t> all) {
  std::uint64_t sum = 0x9e3779b97f4a7c15;
  for (const auto each : all) {
    sum = (sum ^ each) * 0xbf58476d1ce4e5b9;
    sum ^= sum >> 29;
  }
  return sum;
}

replay_company::replay_company(replay_options options, std::uint64_t seed)
    : options_(std::move(options)),
      layout_(options_.training.layout()),
      stages_(layout_.stages),
      random_(seed),
      starts_(stages_, 1),
      told_until_(stages_, 0),
      feeder_{credited_queue(options_.credits), credited_queue(options_.credits)},
      coordinator_(
          {.stages = stages_, .skip = true, .clip_norm = 500, .accumulate = options_.accumulate}),
      window_(options_.accumulate) {
  for (const auto& steps : options_.training.stages)
    plans_.push_back(proved_plan::prove(steps, options_.training.microbatches, layout_.chunks,
                                        step_kind::training)
                         .value());
  for (std::uint32_t stage = 0; stage < stages_; ++stage)
    processes_[{stage, 1}] = std::make_unique<process>(start(stage, 1, mix({stage})));
}

// Time and chance.

std::uint32_t replay_company::below(std::uint32_t bound) {
  return bound == 0 ? 0 : static_cast<std::uint32_t>(random_() % bound);
}

void replay_company::after(std::uint64_t delay, std::function<void()> what) {
  agenda_.emplace(now_ + delay, std::move(what));
}

void replay_company::fault(const std::string& what) {
  if (fault_.empty()) fault_ = what;
}

std::string replay_company::run() {
  for (auto& [who, each] : processes_) make_version(*each, 0);
  while (!agenda_.empty()) go_on();  // a run begins once all first versions are kept
  announce();
  while (!agenda_.empty() && fault_.empty() && fell_back_.empty()) {
    go_on();
    if (const auto loss = options_.losses.find(++events_); loss != options_.losses.end())
      lose(loss->second);
  }
  if (fault_.empty() && fell_back_.empty()) check_end();
  return fault_;
}

void replay_company::go_on() {
  const auto next = agenda_.begin();
  now_ = next->first;
  const auto what = std::move(next->second);
  agenda_.erase(next);
  what();
}

std::vector<std::uint64_t> replay_company::outcome() const {
  std::vector<std::uint64_t> all;
  for (std::uint32_t stage = 0; stage < stages_; ++stage)
    all.push_back(processes_.contains(now_of(stage)) ? processes_.at(now_of(stage))->weights
                                                     : last_weights_.at(stage));
  for (const auto& [number, loss] : losses_) all.push_back(loss);
  return all;
}

// Processes and messages.

replay_company::process* replay_company::at(const process_id& who) {
  const auto found = processes_.find(who);
  return found == processes_.end() ? nullptr : found->second.get();
}

replay_company::process_id replay_company::now_of(std::uint32_t stage) const {
  return {stage, starts_[stage]};
}

replay_company::process replay_company::start(std::uint32_t stage, std::uint32_t start,
                                              std::uint64_t weights) {
  step_end_rules rules{.stage = {stage},
                       .may_leave_out = true,
                       .clips_norm = true,
                       .accumulate = options_.accumulate,
                       .always_votes = true,
                       .logs = true};
  if (shares_tie(stage)) rules.ties = {tied};
  process made;
  made.self = {stage, start};
  made.core = stage_core(options_.credits, execution::ready, true);
  made.end = step_end_core(rules);
  made.window = replay_window(options_.accumulate);
  made.stores = actors::stores_core(2, versions_kept);
  made.weights = weights;
  made.known = starts_;
  made.sums.resize(layout_.chunks);
  return made;
}

void replay_company::lose(std::uint32_t stage) {
  if (lost_ || is_replacing_) return fall_back("another stage is lost meanwhile");
  if (at(now_of(stage)) == nullptr) return;
  last_weights_[stage] = at(now_of(stage))->weights;
  processes_.erase(now_of(stage));
  lost_ = stage;
  after(a_delay(), [this, stage] { notice(stage); });
}

void replay_company::post(const process_id& from, const process_id& to,
                          std::function<void(process&)> what) {
  after(a_delay(), [this, from, to, what = std::move(what)] {
    const bool is_sender_gone = from.stage < stages_ && at(from) == nullptr;
    if (is_sender_gone && below(2) == 0) return;
    if (auto* const there = at(to)) what(*there);
  });
}

// To the trainer's process everything keeps its order; of a lost one the last of it never comes.
void replay_company::tell_trainer(const process_id& from, std::function<void()> what) {
  auto& until = told_trainer_[from];
  until = std::max(until + 1, now_ + a_delay());
  agenda_.emplace(until, [this, from, what = std::move(what)] {
    if (cut_off_.contains(from)) return;
    if (at(from) == nullptr && below(2) == 0)
      cut_off_.insert(from);
    else
      what();
  });
}

void replay_company::post_in_order(std::uint32_t stage, std::function<void(process&)> what) {
  auto& until = told_until_[stage];
  until = std::max(until + 1, now_ + a_delay());
  agenda_.emplace(until, [this, to = now_of(stage), what = std::move(what)] {
    if (auto* const there = at(to)) what(*there);
  });
}

// What comes from a process that was lost is dropped once another one is known in its place, and
// nothing may come from that one before.
bool replay_company::admits(process& at, const process_id& from) {
  if (from.stage >= stages_) return true;
  const auto known = at.known[from.stage];
  if (from.start > known) fault("a message of a process that its receiver does not know");
  return from.start == known;
}

// The trainer. Two steps are under way at most.

void replay_company::announce() {
  while (announced_ < options_.steps && announced_ < finished_ + 2 && !is_replacing_) {
    ++announced_;
    const order what{{{}, {announced_ + evaluations}}, announced_};
    orders_.emplace(what.number, what);
    window_.begun(what.number, what.key);
    for (std::uint32_t stage = 0; stage < stages_; ++stage)
      post_in_order(stage, [this, what](process& there) { begin(there, what); });
    for (std::uint32_t i = 0; i < options_.training.microbatches; ++i) {
      feed(edge::input, feeder_[0].offer({what.key, {i}}, true));
      feed(edge::target, feeder_[1].offer({what.key, {i}}, true));
    }
  }
}

void replay_company::begin(process& at, const order& what) {
  const auto stage = at.self.stage;
  auto effects = at.core.begin({what.key, plans_[stage], stage == 0,
                                layout_.slice_at(layout_.virtual_stages() - 1).stage == stage});
  if (auto begun = at.end.begin(what.key, what.number); !begun) return fault(begun.error().text);
  at.window.begun(what.number, what.key);
  at.numbers[what.key] = what.number;
  perform(at, effects);
}

void replay_company::feed(edge on, const std::vector<edge_place>& due) {
  const auto [stage, chunk] =
      layout_.slice_at(on == edge::input ? 0 : layout_.virtual_stages() - 1);
  const process_id feeder{stages_, 0};
  for (const auto& what : due) {
    const tensor_key key{what.key, chunk, what.microbatch};
    count_sent(feeder, now_of(stage), on, key);
    post(feeder, now_of(stage), [this, feeder, on, key](process& there) {
      arrive(there, feeder, on, key, sample_of(std::get<0>(key), std::get<2>(key), on));
    });
  }
}

void replay_company::credit_feeder(const process_id& from, edge on, const edge_place& what) {
  if (from != now_of(from.stage)) return;
  const auto due = feeder_[on == edge::input ? 0 : 1].credited(what);
  if (!due) return fault("the feeder refused: " + due.error().text);
  feed(on, *due);
}

void replay_company::answered(const process_id& from, const step_key& key, std::uint64_t loss) {
  if (from != now_of(from.stage)) return;
  const auto number = key.step.value - evaluations;
  const bool is_last = layout_.slice_at(layout_.virtual_stages() - 1).stage == from.stage;
  if (is_last) {
    if (losses_.contains(number) && losses_[number] != loss)
      fault("step " + std::to_string(number) + " has another loss than before");
    losses_[number] = loss;
  }
  answers_[number].emplace(from.stage, loss);
  finish_steps();
}

void replay_company::finish_steps() {
  while (finished_ < announced_ && answers_[finished_ + 1].size() == stages_) {
    ++finished_;
    const auto first = window_.decided(finished_);
    if (!first) continue;
    std::erase_if(orders_, [&](const auto& each) { return each.second.key < *first; });
    for (auto& each : feeder_) each.forget_before(*first);
  }
  announce();
}

void replay_company::fall_back(const std::string& why) {
  if (fell_back_.empty()) fell_back_ = why;
}

/// A request to the lost process fails: there is a step under way, or there is nothing to do.
void replay_company::notice(std::uint32_t stage) {
  if (finished_ == options_.steps) return static_cast<void>(lost_.reset());
  is_replacing_ = true;
  after(a_delay(), [this, stage] { replace(stage); });
}

void replay_company::replace(std::uint32_t stage) {
  const auto second = now_of((stage + 1) % stages_);
  const auto& versions = stages_ == 1 ? keeps_here_[stage] : at(second)->keeps[stage];
  auto due = announced_;
  for (auto number = announced_; number > finished_; --number)
    if (!answers_[number].contains(stage)) due = number;
  const auto newer = versions.lower_bound(due);
  if (newer == versions.begin()) return fall_back("no version");
  const auto [version, weights] = *std::prev(newer);
  if (!orders_.contains(version + 1)) return fall_back("the order is forgotten");
  const auto id = process_id{stage, ++starts_[stage]};
  lost_.reset();
  processes_[id] = std::make_unique<process>(start(stage, id.start, weights));
  auto& made = *processes_[id];
  make_version(made, version);
  for (const auto& [number, what] : orders_)
    if (number > version) begin(made, what);
  tell_others(stage, orders_.at(version + 1).key);
}

void replay_company::tell_others(std::uint32_t stage, const step_key& from) {
  const auto missing = std::make_shared<std::uint32_t>(stages_ - 1);
  if (*missing == 0) return resume_others(stage, from);
  for (std::uint32_t other = 0; other < stages_; ++other)
    if (other != stage)
      post_in_order(other, [this, stage, from, missing](process& there) {
        replace_at(there, stage, from);
        if (--*missing == 0) after(a_delay(), [this, stage, from] { resume_others(stage, from); });
      });
}

void replay_company::replace_at(process& at, std::uint32_t stage, const step_key& from) {
  if (!at.window.reaches(from)) return fall_back("what was sent is forgotten");
  at.known[stage] = starts_[stage];
  shared_edges which;
  for (std::uint32_t chunk = 0; chunk < layout_.chunks; ++chunk) {
    const auto here = layout_.virtual_stage_of({at.self.stage, chunk});
    if (here > 0 && layout_.slice_at(here - 1).stage == stage) which.before.push_back(chunk);
    if (here + 1 < layout_.virtual_stages() && layout_.slice_at(here + 1).stage == stage)
      which.after.push_back(chunk);
  }
  const bool is_tied = shares_tie(at.self.stage) && other_end(at.self.stage) == stage;
  const bool is_near = !which.before.empty() || !which.after.empty() || is_tied;
  if (is_near && at.end.waits_before(from)) return fall_back("a neighbour is still replayed");
  at.core.start_over(which, from);
  if (is_tied) {
    at.end.start_over({tied}, from);
    for (const auto& each : at.sent_ties)
      if (each.key >= from) send_tie(at, each);
  }
  if (stage == (at.self.stage + 1) % stages_) store(at, at.stores.replaced(1));
}

void replay_company::resume_others(std::uint32_t stage, const step_key& from) {
  ++replays_;
  is_replacing_ = false;
  for (std::uint32_t other = 0; other < stages_; ++other)
    if (other != stage)
      post_in_order(other, [this](process& there) { perform(there, there.core.resume()); });
  const auto ends_in = [&](std::uint32_t slice) { return layout_.slice_at(slice).stage == stage; };
  if (ends_in(0)) {
    feeder_[0].start_over(from);
    feed(edge::input, feeder_[0].resume());
  }
  if (ends_in(layout_.virtual_stages() - 1)) {
    feeder_[1].start_over(from);
    feed(edge::target, feeder_[1].resume());
  }
  finish_steps();
}

// What must hold at the end.

void replay_company::check_end() {
  if (finished_ != options_.steps)
    fault("only " + std::to_string(finished_) + " steps were done; stage 0: " +
          (at(now_of(0)) ? at(now_of(0))->core.waiting_for() : "is lost"));
  for (const auto& [who, each] : processes_) {
    check_log(*each);
    if (each->core.waiting_for() != "no step is announced")
      fault("stage " + std::to_string(who.stage) + ": " + each->core.waiting_for());
    if (!each->inputs.empty() || !each->gradients.empty() || !each->contexts.empty())
      fault("stage " + std::to_string(who.stage) + " still holds something");
  }
  for (const auto& [which, unused] : unused_) {
    const auto& [from, to, on, chunk] = which;
    const bool is_here = (from.stage >= stages_ || at(from) != nullptr) && at(to) != nullptr;
    if (is_here && !unused.empty()) fault("a credit never came back");
  }
}

// What was done of a step is all of its plan, in an order that the checker accepts.
void replay_company::check_log(const process& of) {
  const auto& whole = options_.training.stages[of.self.stage];
  for (const auto& [key, actions] : of.log) {
    if (actions.size() != whole.actions.size())
      fault("stage " + std::to_string(of.self.stage) + " did not complete " + to_string(key));
    const auto sound =
        check_stage({actions, whole.memory_cap}, {of.self.stage}, options_.training.microbatches,
                    layout_.chunks, step_kind::training);
    if (!sound) fault(to_string(key) + ": " + sound.error().text);
  }
}

}  // namespace troupe::tests
