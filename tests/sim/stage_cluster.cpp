#include "tests/sim/stage_cluster.hpp"

#include <algorithm>
#include <utility>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"

namespace troupe::tests {

using namespace engine;

stage_cluster::stage_cluster(cluster_options options, std::uint64_t seed)
    : options_(std::move(options)),
      seed_(seed),
      stages_(static_cast<std::uint32_t>(options_.training.stages.size())),
      evaluation_(forward_only(stages_, options_.training.microbatches)),
      random_(seed),
      cores_(stages_, stage_core(options_.credits)),
      feeder_{credited_queue(options_.credits), credited_queue(options_.credits)},
      busy_(stages_),
      finished_(stages_),
      began_(stages_, 0) {
  for (std::uint64_t step = 0; step <= options_.steps; ++step)
    trains_.push_back(below(3) >= options_.evaluations_of_3);
  for (auto& edge : feeder_) edge.start_epoch(epoch_);
}

std::uint32_t stage_cluster::below(std::uint32_t bound) {
  return bound == 0 ? 0 : static_cast<std::uint32_t>(random_() % bound);
}

void stage_cluster::after(std::uint64_t delay, std::function<void()> what) {
  agenda_.emplace(now_ + delay, std::move(what));
}

std::uint64_t stage_cluster::a_delay() {
  return options_.least_delay + below(options_.jitter);
}

const stage_plan& stage_cluster::plan_of(std::uint64_t step, std::uint32_t stage) const {
  return (trains_[step] ? options_.training : evaluation_).stages[stage];
}

std::string stage_cluster::run() {
  announce();
  if (options_.restarts) after(below(300), [this] { restart(); });
  while (!agenda_.empty() && fault_.empty()) {
    auto next = agenda_.begin();
    now_ = next->first;
    const auto what = std::move(next->second);
    agenda_.erase(next);
    what();
  }
  for (std::uint32_t s = 0; s < stages_ && fault_.empty(); ++s) check_log(s);
  return fault_;
}

// Two steps are on their way at most, as the coordinator of a run would have it.
void stage_cluster::announce() {
  while (announced_ < options_.steps && std::ranges::all_of(finished_, [this](std::uint64_t done) {
           return announced_ < done + 2;
         })) {
    ++announced_;
    for (std::uint32_t s = 0; s < stages_; ++s) begin(s, announced_);
    for (std::uint32_t i = 0; i < options_.training.microbatches; ++i) {
      const edge_place what{current(announced_), {i}};
      feed(edge::input, feeder_[0].offer(what));
      feed(edge::target, feeder_[1].offer(what));
    }
  }
}

void stage_cluster::begin(std::uint32_t s, std::uint64_t number) {
  const run_step step{current(number),
                      trains_[number] ? step_kind::training : step_kind::evaluation,
                      plan_of(number, s), s == 0, s + 1 == stages_};
  began_[s] = std::max(began_[s] + 1, now_ + a_delay());  // announcements keep order
  agenda_.emplace(began_[s], [this, s, step] {
    deliver(s, step.key, [step](stage_core& core) { return core.begin(step); });
  });
}

void stage_cluster::restart() {
  const std::uint64_t committed = *std::ranges::min_element(finished_);
  epoch_ = {epoch_.value + 1};
  for (auto& edge : feeder_) edge.start_epoch(epoch_);
  announced_ = committed;
  std::ranges::fill(finished_, committed);
  restarted_after_ = committed;
  announce();
}

void stage_cluster::hand(std::uint32_t to, step_key key, const event& what) {
  after(a_delay(), [this, to, key, what] {
    deliver(to, key, what);
    if (options_.repeats && below(10) == 0)
      after(a_delay(), [this, to, key, what] { refuse(to, key, what); });
  });
}

void stage_cluster::send(std::uint32_t to, edge on, const edge_place& what) {
  if (++unused_[{what.key.epoch, {to, on}}] > options_.credits)
    fault_ = "more is sent to stage " + std::to_string(to) + " than it gave credits for";
  hand(to, what.key, [on, what](stage_core& core) {
    if (on == edge::input) return core.input_arrived(what.key, what.microbatch);
    if (on == edge::target) return core.target_arrived(what.key, what.microbatch);
    return core.gradient_arrived(what.key, what.microbatch);
  });
}

void stage_cluster::feed(edge on, const std::vector<edge_place>& due) {
  for (const auto& what : due) send(on == edge::input ? 0 : stages_ - 1, on, what);
}

void stage_cluster::credit_feeder(edge on, const edge_place& what) {
  const auto due = feeder_[on == edge::input ? 0 : 1].credited(what);
  if (due) return feed(on, *due);
  if (what.key.epoch == epoch_ || due.error().code != errc::stale)
    fault_ = "the feeder refused: " + due.error().text;
}

void stage_cluster::grant(std::uint32_t s, const grant_credit& granted) {
  const edge_place what{granted.key, granted.microbatch};
  --unused_[{what.key.epoch, {s, granted.from}}];
  const bool of_feeder = granted.from == edge::target || (granted.from == edge::input && s == 0);
  if (of_feeder)
    return after(a_delay(), [this, on = granted.from, what] { credit_feeder(on, what); });
  hand(granted.from == edge::input ? s - 1 : s + 1, what.key,
       [on = granted.from, what](stage_core& core) {
         return core.credit_arrived(on, what.key, what.microbatch);
       });
}

void stage_cluster::pass_on(std::uint32_t s, const send_output& output) {
  const edge_place what{output.key, output.what.microbatch};
  if (output.what.kind == action_kind::forward)
    send(s + 1, edge::input, what);
  else
    send(s - 1, edge::gradient, what);
}

void stage_cluster::deliver(std::uint32_t to, step_key key, const event& what) {
  const auto effects = what(cores_[to]);
  if (effects) return perform(to, *effects);
  if (key.epoch == epoch_ || effects.error().code != errc::stale)
    fault_ = "stage " + std::to_string(to) + " refused: " + effects.error().text;
}

// A second copy changes nothing, whenever it comes. (Of an epoch that is given up it may still be
// taken: what a stage kept early for it is forgotten when it hears of a newer one.)
void stage_cluster::refuse(std::uint32_t to, step_key key, const event& what) {
  const std::string before = cores_[to].waiting_for();
  const auto effects = what(cores_[to]);
  if (effects && key.epoch < epoch_) return perform(to, *effects);
  if (effects || cores_[to].waiting_for() != before)
    fault_ = "stage " + std::to_string(to) + " took a message twice";
}

void stage_cluster::perform(std::uint32_t s, const stage_effects& effects) {
  for (const auto& effect : effects) {
    if (const auto* start = std::get_if<start_action>(&effect)) work(s, *start);
    if (const auto* output = std::get_if<send_output>(&effect)) pass_on(s, *output);
    if (const auto* granted = std::get_if<grant_credit>(&effect)) grant(s, *granted);
    if (const auto* done = std::get_if<step_finished>(&effect)) finish(s, *done);
  }
}

// The same for the same seed, whatever came before.
std::uint64_t stage_cluster::cost_of(std::uint32_t s, const start_action& start) const {
  const bool is_forward = start.what.kind == action_kind::forward;
  std::seed_seq which{seed_, std::uint64_t{s}, start.key.step.value,
                      std::uint64_t{start.what.microbatch.value}, std::uint64_t{is_forward}};
  std::uint32_t chance = 0;
  which.generate(&chance, &chance + 1);
  return (is_forward ? options_.forward : options_.backward) +
         (options_.action_jitter == 0 ? 0 : chance % options_.action_jitter);
}

void stage_cluster::work(std::uint32_t s, const start_action& start) {
  if (busy_[s]) fault_ = "stage " + std::to_string(s) + " runs two actions at once";
  busy_[s] = true;
  log_[{s, start.key}].push_back(start.what);
  after(cost_of(s, start), [this, s, key = start.key, what = start.what] {
    busy_[s] = false;
    last_end_ = now_;
    deliver(s, key, [key, what](stage_core& core) { return core.action_done(key, what); });
  });
}

void stage_cluster::finish(std::uint32_t s, const step_finished& done) {
  const auto close = [this, s, done] {
    if (done.key.epoch != epoch_) return;
    finished_[s] = done.key.step.value;
    announce();
  };
  if (done.kind == step_kind::evaluation) return close();
  after(below(options_.jitter), [this, s, done, close] {
    deliver(s, done.key, [key = done.key](stage_core& core) { return core.update_done(key); });
    close();
  });
}

void stage_cluster::check_log(std::uint32_t s) {
  for (std::uint64_t step = restarted_after_ + 1; step <= options_.steps; ++step) {
    if (log_[{s, current(step)}] != plan_of(step, s).actions)
      fault_ = "stage " + std::to_string(s) + " did not complete " + to_string(current(step)) +
               ": " + cores_[s].waiting_for();
  }
  for (const auto& [who, actions] : log_) {
    const auto& whole = plan_of(who.second.step.value, who.first);
    if (actions.size() > whole.actions.size() ||
        !std::equal(actions.begin(), actions.end(), whole.actions.begin()))
      fault_ = "stage " + std::to_string(who.first) + " left the order of its plan";
  }
  if (cores_[s].waiting_for() != "no step is announced")
    fault_ = "stage " + std::to_string(s) + " is not idle: " + cores_[s].waiting_for();
}

plan random_plan(std::uint32_t stages, std::uint32_t microbatches, std::mt19937_64& random) {
  // Plays the plan while writing it: what can run now may come next.
  plan made{"random", microbatches, std::vector<stage_plan>(stages)};
  std::vector<std::uint32_t> forwards(stages, 0), backwards(stages, 0);
  // How eager a stage is to go backward; some never are while they can go forward.
  std::vector<std::uint64_t> eagerness(stages);
  for (auto& each : eagerness) each = random() % 5;
  for (std::uint64_t left = std::uint64_t{2} * stages * microbatches; left > 0;) {
    const auto s = static_cast<std::uint32_t>(random() % stages);
    const bool may_forward =
        forwards[s] < microbatches && (s == 0 || forwards[s] < forwards[s - 1]);
    const bool may_backward =
        backwards[s] < forwards[s] && (s + 1 == stages || backwards[s] < backwards[s + 1]);
    if (!may_forward && !may_backward) continue;
    const bool back = may_backward && (!may_forward || random() % 4 < eagerness[s]);
    auto& next = back ? backwards[s] : forwards[s];
    made.stages[s].actions.push_back(
        {back ? action_kind::backward : action_kind::forward, {next++}});
    made.stages[s].memory_cap = std::max(made.stages[s].memory_cap, forwards[s] - backwards[s]);
    --left;
  }
  return made;
}

}  // namespace troupe::tests
