#include "tests/sim/replay_company.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <variant>

#include "engine/schedule/plan_checker.hpp"

namespace troupe::tests {

using namespace engine;

namespace {

/// Steps before the first training step: the key of a step is not its number.
constexpr std::uint64_t evaluations = 3;

constexpr std::size_t versions_kept = 2;
constexpr auto tied = "tied";

std::uint64_t mix(std::initializer_list<std::uint64_t> all) {
  std::uint64_t sum = 0x9e3779b97f4a7c15;
  for (const auto each : all) {
    sum = (sum ^ each) * 0xbf58476d1ce4e5b9;
    sum ^= sum >> 29;
  }
  return sum;
}

std::uint64_t number_of(const action& what) {
  return mix({what.microbatch.value, what.chunk});
}

/// Of an input, or a label.
std::uint64_t sample_of(const step_key& key, microbatch_id microbatch, edge on) {
  return mix({key.step.value, microbatch.value, static_cast<std::uint64_t>(on)});
}

}  // namespace

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

// A stage: its actions.

void replay_company::perform(process& at, const result<stage_effects>& effects) {
  if (!effects)
    return fault("stage " + std::to_string(at.self.stage) + " refused: " + effects.error().text);
  for (const auto& effect : *effects) {
    if (const auto* start = std::get_if<start_action>(&effect)) work(at, *start);
    if (const auto* output = std::get_if<send_output>(&effect)) send(at, *output);
    if (const auto* granted = std::get_if<grant_credit>(&effect)) grant(at, *granted);
    if (const auto* done = std::get_if<step_finished>(&effect))
      end(at, at.end.actions_done(done->key));
  }
}

void replay_company::work(process& at, const start_action& what) {
  const auto& [key, act] = what;
  at.log[key].push_back(act);
  if (!begun_.emplace(at.self, key, act.kind, act.chunk, act.microbatch).second)
    fault("a process computes an action again");
  compute(at, what);
  after(a_delay(), [this, who = at.self, what] {
    if (auto* const there = this->at(who))
      perform(*there, there->core.action_done(what.key, what.what));
  });
}

// All numbers are taken when the action begins: weights do not change before it ends.
void replay_company::compute(process& at, const start_action& what) {
  const auto& [key, act] = what;
  const tensor_key where{key, act.chunk, act.microbatch};
  const auto slice = layout_.virtual_stage_of({at.self.stage, act.chunk});
  const bool is_last = slice + 1 == layout_.virtual_stages();
  if (act.kind == action_kind::forward) {
    const auto label = is_last ? at.labels.extract(where).mapped() : 0;
    const auto output =
        mix({at.weights, at.inputs.extract(where).mapped(), label, number_of(act), key.step.value});
    at.contexts[where] = output;
    if (is_last)
      at.losses[key] = mix({at.losses[key], output});
    else
      at.outputs[{where, edge::input}] = output;
    return;
  }
  if (act.kind != action_kind::weight_gradient) {
    const auto given = is_last ? 1 : at.gradients.extract(where).mapped();
    at.contexts[where] = mix({at.contexts.at(where), given});
    if (slice > 0) at.outputs[{where, edge::gradient}] = mix({at.weights, at.contexts.at(where)});
  }
  if (act.kind != action_kind::input_gradient)
    at.sums[act.chunk] = mix({at.sums[act.chunk], at.contexts.extract(where).mapped()});
}

void replay_company::send(process& at, const send_output& what) {
  const auto output = at.outputs.find({tensor_key{what.key, what.chunk, what.microbatch}, what.on});
  if (output == at.outputs.end()) return fault("an output is to be sent that is forgotten");
  const auto slice = layout_.virtual_stage_of({at.self.stage, what.chunk});
  const auto [stage, chunk] = layout_.slice_at(what.on == edge::input ? slice + 1 : slice - 1);
  const process_id to{stage, stage == at.self.stage ? at.self.start : at.known[stage]};
  const tensor_key key{what.key, chunk, what.microbatch};
  count_sent(at.self, to, what.on, key);
  const auto arrival = [this, from = at.self, on = what.on, key, value = output->second](
                           process& there) { arrive(there, from, on, key, value); };
  post(at.self, to, arrival);
}

void replay_company::count_sent(const process_id& from, const process_id& to, edge on,
                                const tensor_key& key) {
  const auto& [step, chunk, microbatch] = key;
  auto& unused = unused_[{from, to, on, chunk}];
  if (!unused.emplace(step, microbatch).second) fault("a process sends something twice");
  if (unused.size() > options_.credits) fault("more is sent on an edge than it has credits");
}

void replay_company::arrive(process& at, const process_id& from, edge on, const tensor_key& key,
                            std::uint64_t value) {
  if (!admits(at, from)) return;
  const auto& [step, chunk, microbatch] = key;
  const auto tell = [&] {
    if (on == edge::input) return at.core.input_arrived(step, microbatch, chunk);
    if (on == edge::target) return at.core.target_arrived(step, microbatch, chunk);
    return at.core.gradient_arrived(step, microbatch, chunk);
  };
  const bool is_repeat = at.core.is_repeat(on, step, microbatch, chunk);
  if (!is_repeat)
    (on == edge::input ? at.inputs : on == edge::target ? at.labels : at.gradients)[key] = value;
  perform(at, tell());
  if (options_.repeats && below(8) == 0 && tell())
    fault("stage " + std::to_string(at.self.stage) + " took a message twice");
}

void replay_company::grant(process& at, const grant_credit& what) {
  const auto at_slice = layout_.virtual_stage_of({at.self.stage, what.chunk});
  const edge_place used{what.key, what.microbatch};
  const bool is_fed = what.from == edge::target || (what.from == edge::input && at_slice == 0);
  const process_id feeder{stages_, 0};
  const auto [stage, chunk] =
      is_fed ? slice{} : layout_.slice_at(what.from == edge::input ? at_slice - 1 : at_slice + 1);
  const process_id sender =
      is_fed ? feeder : process_id{stage, stage == at.self.stage ? at.self.start : at.known[stage]};
  if (unused_[{sender, at.self, what.from, what.chunk}].erase({what.key, what.microbatch}) == 0)
    fault("a credit for what was not sent");
  if (is_fed)
    return after(a_delay(),
                 [this, from = at.self, on = what.from, used] { credit_feeder(from, on, used); });
  post(at.self, sender, [this, from = at.self, on = what.from, used, chunk](process& there) {
    if (!admits(there, from)) return;
    perform(there, there.core.credit_arrived(on, used.key, used.microbatch, chunk));
  });
}

// A stage: the end of its steps.

bool replay_company::shares_tie(std::uint32_t stage) const {
  return options_.ties && stages_ > 1 && (stage == 0 || stage + 1 == stages_);
}

std::uint32_t replay_company::other_end(std::uint32_t stage) const {
  return stage == 0 ? stages_ - 1 : 0;
}

void replay_company::end(process& at, const result<step_end_effects>& effects) {
  if (!effects)
    return fault("the end of a step on stage " + std::to_string(at.self.stage) +
                 " refused: " + effects.error().text);
  for (const auto& effect : *effects) end_one(at, effect);
}

void replay_company::end_one(process& at, const step_end_effect& effect) {
  const auto later = [&](auto what) {
    after(a_delay(), [this, who = at.self, what] {
      if (auto* const there = this->at(who)) what(*there);
    });
  };
  if (const auto* own = std::get_if<sum_own>(&effect)) {
    at.own_sum = 0;
    for (auto& each : at.sums) at.own_sum += std::exchange(each, 0);
    at.total = at.own_sum;
    later([this, what = *own](process& there) {
      what.complete ? gradients_complete(there, what.key, *what.complete)
                    : end(there, there.end.own_summed(what.key));
    });
  } else if (const auto* share = std::get_if<share_ties>(&effect)) {
    at.sent_ties.push_back({share->key, at.own_sum});
    send_tie(at, at.sent_ties.back());
  } else if (const auto* with = std::get_if<sum_with_ties>(&effect)) {
    at.total = at.own_sum + at.tied.extract(with->key).mapped();
    later(
        [this, what = *with](process& there) { gradients_complete(there, what.key, what.terms); });
  } else if (const auto* cast = std::get_if<cast_vote>(&effect)) {
    const auto send = [this, who = at.self, what = cast->vote] {
      if (auto* const there = this->at(who)) vote(*there, what);
    };
    at.stores.is_stored() ? send() : at.when_stored.push_back(send);
  } else if (const auto* apply = std::get_if<apply_step>(&effect); apply && apply->scale) {
    at.weights = mix({at.weights, std::exchange(at.accumulated, 0),
                      std::bit_cast<std::uint64_t>(*apply->scale)});
    later([this, key = apply->key](process& there) { end(there, there.end.ended(key)); });
  } else if (const auto* undo = std::get_if<undo_step>(&effect)) {
    if (undo->drops_sums) at.accumulated = 0;
    later([this, key = undo->key](process& there) { end(there, there.end.ended(key)); });
  } else if (const auto* over = std::get_if<finish_step>(&effect)) {
    const auto number = at.numbers.at(over->key);
    if (at.end.is_between_updates()) make_version(at, number);
    tell_trainer(at.self, [this, from = at.self, key = over->key, loss = at.losses[over->key]] {
      answered(from, key, loss);
    });
    perform(at, at.core.update_done(over->key));
  }
}

void replay_company::gradients_complete(process& at, const step_key& key,
                                        const gradient_terms& terms) {
  gradient_report found;
  if (at.total % 8 < options_.left_out_of_8)
    found.not_finite = "a gradient";
  else if (terms.use != gradient_use::check)
    at.accumulated = mix({at.accumulated, at.total});
  if (terms.squares) found.squares = {static_cast<double>(at.total % 100'000)};
  end(at, at.end.gradients_ready(key, found));
}

void replay_company::send_tie(process& at, const sent_tie& what) {
  const auto other = other_end(at.self.stage);
  post(at.self, {other, at.known[other]}, [this, from = at.self, what](process& there) {
    tie_arrived(there, from, what.key, what.value);
  });
}

void replay_company::tie_arrived(process& at, const process_id& from, const step_key& key,
                                 std::uint64_t value) {
  if (!admits(at, from) || at.end.take_repeat(key, tied)) return;
  const auto effects = at.end.tie_arrived(key, tied);
  if (effects) at.tied[key] = value;
  end(at, effects);
}

void replay_company::vote(process& at, const step_vote& what) {
  tell_trainer(at.self, [this, from = at.self, what] {
    const auto decision = coordinator_.hear(what);
    if (!decision) return fault("the coordinator refused: " + decision.error().text);
    voters_[what.step].push_back(from);
    if (!*decision) return;
    const auto voters = voters_.extract(what.step);
    for (const auto& each : voters.mapped())
      post({stages_ + 1, 0}, each,
           [this, told = **decision](process& there) { decided(there, told); });
  });
}

void replay_company::decided(process& at, const step_decision& what) {
  if (const auto first = at.window.decided(at.numbers.at(what.step))) {
    at.core.forget_before(*first);
    at.end.forget_before(*first);
    std::erase_if(at.outputs,
                  [&](const auto& each) { return std::get<step_key>(each.first.first) < *first; });
    std::erase_if(at.sent_ties, [&](const sent_tie& each) { return each.key < *first; });
  }
  end(at, at.end.decided(what));
}

// A stage: its versions.

void replay_company::make_version(process& at, std::uint64_t number) {
  at.stores.begin();
  after(a_delay(), [this, who = at.self, number, weights = at.weights] {
    auto* const there = this->at(who);
    if (there == nullptr) return;
    there->kept[number] = weights;
    store(*there, there->stores.copied(number));
  });
}

void replay_company::store(process& at, const actors::stores_core::effects& what) {
  for (const auto& [to, step] : what) {
    const auto stage = at.self.stage;
    const bool is_own = to.place == 0;
    const auto other = (stage + 1) % stages_;
    const auto put = [this, stage, step = step, value = at.kept.at(step), to = to,
                      who = at.self](auto& keeps) {
      auto& versions = keeps[stage];
      versions.erase(versions.upper_bound(step), versions.end());
      versions[step] = value;
      while (versions.size() > versions_kept) versions.erase(versions.begin());
      after(a_delay(), [this, who, to] {
        if (auto* const there = this->at(who)) stored(*there, to);
      });
    };
    if (stages_ == 1 && !is_own)
      after(a_delay(), [this, put] { put(keeps_here_); });
    else
      post(at.self, is_own ? at.self : process_id{other, at.known[other]},
           [put](process& there) { put(there.keeps); });
  }
}

void replay_company::stored(process& at, const actors::stores_core::addressee& by) {
  store(at, at.stores.stored(by));
  if (!at.stores.is_stored()) return;
  for (const auto& each : std::exchange(at.when_stored, {})) each();
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
