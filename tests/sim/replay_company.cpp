#include "tests/sim/replay_company.hpp"

#include <algorithm>
#include <iterator>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"

namespace troupe::tests {

using namespace engine;

namespace {

/// Steps before the first training step: the key of a step is not its number.
constexpr std::uint64_t steps_before = 3;
constexpr int steps_of_evaluation = 3;
constexpr std::uint64_t most_events = 1'000'000;

/// Of an input, or a label.
std::uint64_t sample_of(const step_key& key, std::uint32_t replica, microbatch_id microbatch,
                        edge on) {
  return mix({key.step.value, replica, microbatch.value, static_cast<std::uint64_t>(on)});
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

replay_company::replay_company(replay_options options, std::uint64_t seed, left_run left)
    : options_(std::move(options)),
      layout_(options_.training.layout()),
      evaluation_(forward_only(layout_, options_.training.microbatches)),
      stages_(layout_.stages * options_.replicas),
      random_(seed),
      salt_(seed),
      left_(std::move(left)),
      starts_(stages_, 1),
      told_until_(stages_, 0),
      keeper_starts_(stages_, 1),
      hosts_(stages_, "0"),
      understudies_(options_.understudies),
      coordinator_({.stages = stages_,
                    .skip = true,
                    .clip_norm = 500,
                    .replicas = options_.replicas,
                    .accumulate = options_.accumulate}),
      window_(options_.accumulate),
      record_(options_.accumulate) {
  for (const auto& steps : options_.training.stages)
    plans_.push_back(proved_plan::prove(steps, options_.training.microbatches, layout_.chunks,
                                        step_kind::training)
                         .value());
  plan_run();
  for (std::size_t place = 0; place < options_.hosts.size(); ++place)
    hosts_[place] = std::to_string(options_.hosts[place]);
  hosts_left_ = {hosts_.begin(), hosts_.end()};
  choose_keepers();
  // Of former runs: some with steps that this one will come to, one with more.
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{2}, options_.steps + 5})
    disk_[step] = {std::vector<std::uint64_t>(stages_, step)};
  for (std::uint32_t place = 0; place < stages_; ++place) {
    keepers_[{place, 1}] = {};
    beginning_.weights.push_back(mix({stage_of(place)}));
  }
  open_nodes();
  open_feeders();
  const auto weights = options_.restarts ? begin_from_left() : beginning_.weights;
  for (std::uint32_t place = 0; place < stages_; ++place)
    processes_[{place, 1}] = std::make_unique<process>(start(place, 1, weights.at(place)));
}

void replay_company::plan_run() {
  for (const auto& steps : evaluation_.stages)
    evaluation_plans_.push_back(
        proved_plan::prove(steps, evaluation_.microbatches, layout_.chunks, step_kind::evaluation)
            .value());
  const auto add = [&](std::uint64_t number, bool trains) {
    sequence_.push_back({{{}, {sequence_.size() + 1 + steps_before}}, number, trains});
  };
  for (std::uint64_t number = 1; number <= options_.steps; ++number) {
    add(number, true);
    if (options_.evaluate_every > 0 && number % options_.evaluate_every == 0)
      for (int i = 0; i < steps_of_evaluation; ++i) add(number + 1, false);
  }
  whole_sequence_ = sequence_;
  for (const auto& each : sequence_) first_keys_[each.key] = each.key;
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
  fill_understudies(false);
  begin_run();
  while (!agenda_.empty() && fault_.empty() && fell_back_.empty() && !has_given_up_) {
    go_on();
    if (events_ > most_events) fault("the run does not end");
    ++events_;
    befall();
    if (is_trainer_lost_) return fault_;
  }
  if (fault_.empty() && fell_back_.empty() && !has_given_up_) check_end();
  return fault_;
}

void replay_company::befall() {
  const auto now = [this](const auto& planned, auto what) {
    if (const auto found = planned.find(events_); found != planned.end()) what(found->second);
  };
  now(options_.losses, [this](std::uint32_t place) { lose_any(place); });
  now(options_.host_losses, [this](std::uint32_t host) { lose_host(host); });
  now(options_.doubts, [this](std::uint32_t place) { fence(holder(place)); });
  now(options_.cuts, [this](const replay_options::cut& what) { cut(what); });
  now(options_.understudy_losses, [this](std::uint32_t which) { lose_understudy(which, false); });
  now(options_.understudy_doubts, [this](std::uint32_t which) { lose_understudy(which, true); });
  const bool is_time = options_.trainer_loss && *options_.trainer_loss <= events_;
  if (is_time && (!options_.amid_write || left_.disk.is_amid_write())) lose_trainer();
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
  for (const auto& [key, loss] : losses_) all.push_back(loss);
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
  process made;
  made.self = {stage, start};
  nodes_of_[made.self] = holder(stage);
  open_cores(made);
  made.window = replay_window(options_.accumulate);
  const auto& beside = beside_[stage];
  const std::size_t others = (beside.stage ? 1U : 0U) + (beside.trainer ? 1U : 0U);
  made.stores = actors::stores_core(1 + others, keeper_versions::most);
  made.forms = forms_of(stage);
  made.weights = weights;
  made.known = starts_;
  made.feeder = static_cast<std::uint32_t>(feeder_nodes_.size() - 1);
  made.keepers = keeper_starts_;
  made.sums.resize(layout_.chunks);
  return made;
}

void replay_company::choose_keepers() {
  beside_ = cluster::keepers_beside(hosts_, std::vector<bool>(stages_, options_.lends),
                                    options_.outlives);
}

void replay_company::post(const process_id& from, const process_id& to,
                          std::function<void(process&)> what) {
  if (has_lost(node_of(from), node_of(to))) return;
  after(a_delay(), [this, from, to, what = std::move(what)]() mutable {
    if (is_gone(from) && below(2) == 0) return;
    carry(node_of(from), node_of(to), [this, to, what = std::move(what)] {
      if (auto* const there = at(to)) what(*there);
    });
  });
}

// To the trainer's process everything keeps its order; of a lost one the last of it never comes.
void replay_company::tell_trainer(const process_id& from, std::function<void()> what) {
  auto& until = told_trainer_[from];
  until = std::max(until + 1, now_ + a_delay());
  agenda_.emplace(until, [this, from, era = era_, what = std::move(what)]() mutable {
    if (is_trainer_lost_ || cut_off_.contains(from) || era != era_) return;
    if (at(from) == nullptr && below(2) == 0)
      cut_off_.insert(from);
    else
      carry(node_of(from), trainer(), [this, era, what = std::move(what)] {
        if (era == era_) what();
      });
  });
}

void replay_company::post_in_order(std::uint32_t stage, std::function<void(process&)> what) {
  auto& until = told_until_[stage];
  until = std::max(until + 1, now_ + a_delay());
  agenda_.emplace(until, [this, to = now_of(stage), what = std::move(what)]() mutable {
    carry(trainer(), node_of(to), [this, to, what = std::move(what)] {
      if (auto* const there = at(to)) what(*there);
    });
  });
}

// What comes from a process that was lost, or was taken for lost and lives, is dropped once another
// one is known in its place, and nothing may come from that one before.
bool replay_company::admits(process& at, const process_id& from) {
  const bool is_fed = from.stage >= stages_;
  const bool is_known = from.start <= (is_fed ? at.feeder : at.known[from.stage]);
  if (!is_known) fault("a message of a process that its receiver does not know");
  if (is_fed) return from.start == at.feeder;
  return is_known && !(options_.ignores_departed && at.departed.has_departed(from));
}

// The trainer. Two steps are under way at most, and of one kind.

void replay_company::announce() {
  while (announced_ < sequence_.size() && announced_ < finished_ + 2 && !is_replacing_ &&
         !is_returning_) {
    if (wanted_ && record_.under_way()) return;
    if (wanted_) begin_checkpoint(*std::exchange(wanted_, std::nullopt));
    auto what = sequence_[announced_];
    what.first = first_keys_.at(what.key);
    if (announced_ > finished_ && sequence_[announced_ - 1].trains != what.trains) return;
    const auto over = announced_ > finished_ ? done_before() : what.key;
    forget_evaluations(over);
    ++announced_;
    if (what.trains) trained_ = what.number;
    orders_.emplace(what.key, what);
    if (what.trains)
      window_.begun(what.number, what.key);
    else
      window_.begun_evaluation(what.key);
    for (std::uint32_t stage = 0; stage < stages_; ++stage)
      post_in_order(stage, [this, what, over, notes = notes_sent_](process& there) {
        certain_notes_ = std::max(certain_notes_, notes);
        begin(there, what, over);
      });
    deliver(what.key, {});
    if (what.trains) want_checkpoint(what.number);
  }
}

step_key replay_company::done_before() const {
  return sequence_[finished_].key;
}

const replay_company::order* replay_company::order_of(std::uint64_t number) const {
  const auto found = std::ranges::find_if(orders_, [&](const auto& each) {
    return each.second.trains && each.second.number == number;
  });
  return found == orders_.end() ? nullptr : &found->second;
}

void replay_company::forget_evaluations(const step_key& done_before) {
  for (const auto& key : window_.done_before(done_before)) {
    orders_.erase(key);
    for (auto& of : feeders_)
      for (auto& each : of) each.forget(key);
  }
}

slice replay_company::slice_beside(std::uint32_t place, std::uint32_t virtual_stage) const {
  auto there = layout_.slice_at(virtual_stage);
  there.stage += replica_of(place) * layout_.stages;
  return there;
}

void replay_company::feed(std::uint32_t replica, edge on, const std::vector<edge_place>& due) {
  const auto [stage, chunk] =
      slice_beside(replica * layout_.stages, on == edge::input ? 0 : layout_.virtual_stages() - 1);
  const process_id feeder{stages_, static_cast<std::uint32_t>(feeder_nodes_.size() - 1)};
  for (const auto& what : due) {
    const tensor_key key{what.key, chunk, what.microbatch};
    const process_id to{stage, fed_starts_[stage]};
    count_sent(feeder, to, on, key);
    const auto sample = sample_of(first_keys_.at(what.key), replica, what.microbatch, on);
    post(feeder, to, [this, feeder, on, key, sample](process& there) {
      arrive(there, feeder, on, key, sample);
    });
  }
}

void replay_company::credit_feeder(const process_id& from, std::uint32_t feeder, edge on,
                                   const edge_place& what) {
  if (is_trainer_lost_ || from != now_of(from.stage) || !is_feeder_there(feeder)) return;
  const auto replica = replica_of(from.stage);
  const auto due = feeders_[replica][on == edge::input ? 0 : 1].credited(what);
  if (!due) return fault("the feeder refused: " + due.error().text);
  feed(replica, on, *due);
}

void replay_company::answered(const process_id& from, const step_key& key, std::uint64_t loss) {
  if (from != now_of(from.stage)) return;
  if (slice_beside(from.stage, layout_.virtual_stages() - 1).stage == from.stage) {
    const auto [told, fresh] =
        losses_.emplace(std::pair(first_keys_.at(key), replica_of(from.stage)), loss);
    if (!fresh && told->second != loss) fault(to_string(key) + " has another loss than before");
  }
  answers_[key].emplace(from.stage, loss);
  repeats_[from.stage].erase(key);
  finish_steps();
}

void replay_company::finish_steps() {
  if (is_replacing_) return;
  while (is_next_done()) {
    const auto& over = sequence_[finished_++];
    if (over.trains)
      tell(over.number);
    else
      note_evaluated(finished_ - 1);
  }
  announce();
}

bool replay_company::is_next_done() {
  return finished_ < announced_ && answers_[sequence_[finished_].key].size() == stages_;
}

/// Who has started the run hears of a training step, unless it is done again.
void replay_company::tell(std::uint64_t number) {
  if (number > told_ + 1) fault("step " + std::to_string(told_ + 1) + " is never reported");
  told_ = std::max(told_, number);
  record_.told(number);
  if (const auto first = window_.decided(number)) {
    orders_.erase(orders_.begin(), orders_.lower_bound(*first));
    for (auto& of : feeders_)
      for (auto& each : of) each.forget_before(*first);
  }
  if (options_.restarts) send_note(number);
  fill_understudies(true);
  complete_if_whole(attempt_);
}

void replay_company::fall_back(const std::string& why) {
  if (is_returning_) return;
  if (options_.returns) return begin_return();
  if (fell_back_.empty()) fell_back_ = why;
}

// What must hold at the end.

void replay_company::check_end() {
  if (told_ != options_.steps) fault("the last steps are never reported");
  if (finished_ != sequence_.size())
    fault("only " + std::to_string(finished_) + " steps were done; stage 0: " +
          (at(now_of(0)) ? waiting_for(*at(now_of(0))) : "is lost"));
  for (const auto& [who, each] : processes_) {
    check_log(*each);
    if (waiting_for(*each) != "no step is announced")
      fault("stage " + std::to_string(who.stage) + ": " + waiting_for(*each));
    if (!each->inputs.empty() || !each->gradients.empty() || !each->contexts.empty() ||
        !each->parts.empty() || !each->bucket_sums.empty() || !each->rests.empty() ||
        !each->values.empty())
      fault("stage " + std::to_string(who.stage) + " still holds something");
  }
  for (const auto& [which, unused] : unused_) {
    const auto& [from, to, on, chunk] = which;
    const bool is_here = !is_gone(from) && at(to) != nullptr;
    if (is_here && !unused.empty()) fault("a credit never came back");
  }
}

// What was done of a step is all of its plan, in an order that the checker accepts.
void replay_company::check_log(const process& of) {
  for (const auto& [key, actions] : of.log) {
    const bool trains = of.numbers.contains(key);
    const auto& plan = trains ? options_.training : evaluation_;
    const auto& whole = plan.stages[stage_of(of.self.stage)];
    if (actions.size() != whole.actions.size())
      fault("stage " + std::to_string(of.self.stage) + " did not complete " + to_string(key));
    const auto sound =
        check_stage({actions, whole.memory_cap}, {stage_of(of.self.stage)}, plan.microbatches,
                    layout_.chunks, trains ? step_kind::training : step_kind::evaluation);
    if (!sound) fault(to_string(key) + ": " + sound.error().text);
  }
}

}  // namespace troupe::tests
