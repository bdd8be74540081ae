#include "tests/sim/stage_cluster.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/simulation.hpp"

namespace troupe::tests {

using namespace engine;

stage_cluster::stage_cluster(cluster_options options, std::uint64_t seed)
    : options_(std::move(options)),
      seed_(seed),
      layout_(options_.training.layout()),
      stages_(layout_.stages),
      evaluation_(forward_only(layout_, options_.training.microbatches)),
      random_(seed),
      cores_(stages_, stage_core(options_.credits, options_.how)),
      feeder_{credited_queue(options_.credits), credited_queue(options_.credits)},
      busy_(stages_),
      deferred_(stages_),
      piece_ends_(stages_),
      finished_(stages_),
      began_(stages_, 0) {
  for (std::uint64_t step = 0; step <= options_.steps; ++step)
    trains_.push_back(below(3) >= options_.evaluations_of_3);
  for (auto& edge : feeder_) edge.start_epoch(epoch_);
  for (const auto kind : {step_kind::training, step_kind::evaluation})
    for (const stage_plan& steps :
         (kind == step_kind::training ? options_.training : evaluation_).stages)
      proved_[kind].push_back(
          proved_plan::prove(steps, options_.training.microbatches, layout_.chunks, kind).value());
}

std::uint32_t stage_cluster::below(std::uint32_t bound) {
  return bound == 0 ? 0 : static_cast<std::uint32_t>(random_() % bound);
}

void stage_cluster::at(std::uint64_t time, phase when, std::function<void()> what) {
  agenda_.emplace(std::pair(time, when), std::move(what));
}

void stage_cluster::after(std::uint64_t delay, std::function<void()> what) {
  at(now_ + delay, arrives, std::move(what));
}

std::uint64_t stage_cluster::a_delay() {
  const std::uint64_t delay = options_.least_delay + below(options_.jitter);
  if (!options_.messages_take) return delay;
  return static_cast<std::uint64_t>(
      std::llround(static_cast<double>(delay) * options_.messages_take(random_)));
}

const stage_plan& stage_cluster::plan_of(std::uint64_t step, std::uint32_t stage) const {
  return (trains_[step] ? options_.training : evaluation_).stages[stage];
}

std::string stage_cluster::run() {
  announce();
  if (options_.restarts) after(below(300), [this] { restart(); });
  while (!agenda_.empty() && fault_.empty()) {
    auto next = agenda_.begin();
    now_ = next->first.first;
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
  const auto kind = trains_[number] ? step_kind::training : step_kind::evaluation;
  const run_step step{current(number), proved_.at(kind)[s], s == 0,
                      layout_.slice_at(layout_.virtual_stages() - 1).stage == s};
  began_[s] = std::max(began_[s] + 1, now_ + a_delay());  // announcements keep order
  at(began_[s], arrives, [this, s, step] {
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

void stage_cluster::send(std::uint32_t virtual_stage, edge on, const edge_place& what) {
  const auto [to, chunk] = layout_.slice_at(virtual_stage);
  if (++unused_[{what.key.epoch, {virtual_stage, on}}] > options_.credits)
    fault_ = "more is sent to stage " + std::to_string(to) + " than it gave credits for";
  hand(to, what.key, [on, what, chunk = chunk](stage_core& core) {
    if (on == edge::input) return core.input_arrived(what.key, what.microbatch, chunk);
    if (on == edge::target) return core.target_arrived(what.key, what.microbatch, chunk);
    return core.gradient_arrived(what.key, what.microbatch, chunk);
  });
}

void stage_cluster::feed(edge on, const std::vector<edge_place>& due) {
  for (const auto& what : due) send(on == edge::input ? 0 : layout_.virtual_stages() - 1, on, what);
}

void stage_cluster::credit_feeder(edge on, const edge_place& what) {
  const auto due = feeder_[on == edge::input ? 0 : 1].credited(what);
  if (due) return feed(on, *due);
  if (what.key.epoch == epoch_ || due.error().code != errc::stale)
    fault_ = "the feeder refused: " + due.error().text;
}

void stage_cluster::grant(std::uint32_t s, const grant_credit& granted) {
  const edge_place what{granted.key, granted.microbatch};
  const edge on = granted.from;
  const std::uint32_t virtual_stage = layout_.virtual_stage_of({s, granted.chunk});
  --unused_[{what.key.epoch, {virtual_stage, on}}];
  if (on == edge::target || (on == edge::input && virtual_stage == 0))
    return after(a_delay(), [this, on, what] { credit_feeder(on, what); });
  const auto [sender, chunk] =
      layout_.slice_at(on == edge::input ? virtual_stage - 1 : virtual_stage + 1);
  hand(sender, what.key, [on, what, chunk = chunk](stage_core& core) {
    return core.credit_arrived(on, what.key, what.microbatch, chunk);
  });
}

void stage_cluster::pass_on(std::uint32_t s, const send_output& output) {
  const std::uint32_t virtual_stage = layout_.virtual_stage_of({s, output.chunk});
  send(output.on == edge::input ? virtual_stage + 1 : virtual_stage - 1, output.on,
       {output.key, output.microbatch});
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
  if (options_.pieces > 0) at(now_, looks_for_work, [this, s] { fill_gap(s); });
}

// The same for the same seed, whatever came before.
std::uint64_t stage_cluster::cost_of(std::uint32_t s, const step_key& key,
                                     const action& what) const {
  const auto draw = [&](std::initializer_list<std::uint64_t> of, const auto& from) {
    std::seed_seq which(of);
    std::mt19937_64 random(which);
    return from(random);
  };
  const slice_cost whole{static_cast<double>(options_.forward),
                         static_cast<double>(options_.input_gradient),
                         static_cast<double>(options_.weight_gradient)};
  double cost = whole.of(what.kind) / layout_.chunks;
  const std::initializer_list<std::uint64_t> each{
      seed_,          s,
      key.step.value, what.microbatch.value,
      what.chunk,     static_cast<std::uint64_t>(what.kind)};
  if (options_.actions_take) cost *= draw(each, options_.actions_take);
  if (options_.microbatches_take)
    cost *= draw({seed_, key.step.value, what.microbatch.value}, options_.microbatches_take);
  if (options_.action_jitter > 0)
    cost += draw(each, [this](auto& random) {
      return static_cast<double>(random() % options_.action_jitter);
    });
  return static_cast<std::uint64_t>(std::llround(cost));
}

// A whole backward takes what its I and W would take alone, so that jitter is the same for plans
// that split it.
std::vector<std::uint64_t> stage_cluster::parts_of(std::uint32_t s,
                                                   const start_action& start) const {
  if (options_.parts) return options_.parts(s, start);
  const auto cost = [&](action_kind kind) {
    return cost_of(s, start.key, {kind, start.what.microbatch, start.what.chunk});
  };
  if (start.what.kind == action_kind::backward)
    return {cost(action_kind::input_gradient), cost(action_kind::weight_gradient)};
  const std::uint64_t whole = cost(start.what.kind);
  if (start.what.kind != action_kind::weight_gradient || options_.pieces == 0) return {whole};
  const std::uint64_t piece = std::max<std::uint64_t>(1, whole / options_.pieces);
  std::vector<std::uint64_t> parts(whole / piece, piece);
  if (whole % piece > 0) parts.push_back(whole % piece);
  return parts;
}

void stage_cluster::work(std::uint32_t s, const start_action& start) {
  if (busy_[s]) fault_ = "stage " + std::to_string(s) + " runs two actions at once";
  busy_[s] = true;
  log_[{s, start.key}].push_back(start.what);
  const std::uint64_t begin = std::max(now_, piece_ends_[s]);
  const auto parts = take_what_is_left(s, start);
  const step_key key = start.key;
  const action what = start.what;
  // A whole backward's gradient leaves before its weights' are computed.
  const std::size_t before_output =
      what.kind == action_kind::backward ? parts.size() / 2 : parts.size();
  const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(before_output);
  const std::uint64_t output = std::accumulate(parts.begin(), middle, begin);
  const std::uint64_t end = std::accumulate(middle, parts.end(), output);
  if (what.kind != action_kind::weight_gradient)
    at(output, arrives, [this, s, key, what] {
      deliver(s, key, [key, what](stage_core& core) { return core.output_ready(key, what); });
    });
  at(end, looks_for_work, [this, s, key, what] {
    busy_[s] = false;
    last_end_ = now_;
    if (options_.pieces > 0 && what.kind == action_kind::input_gradient) put_off(s, {key, what});
    deliver(s, key, [key, what](stage_core& core) { return core.action_done(key, what); });
  });
}

void stage_cluster::put_off(std::uint32_t s, const start_action& gradient) {
  const start_action later{
      gradient.key, {action_kind::weight_gradient, gradient.what.microbatch, gradient.what.chunk}};
  const auto parts = parts_of(s, later);
  deferred_[s].push_back({later, {parts.begin(), parts.end()}});
}

std::vector<std::uint64_t> stage_cluster::take_what_is_left(std::uint32_t s,
                                                            const start_action& start) {
  const auto found = std::ranges::find(deferred_[s], start, &deferred::what);
  if (found == deferred_[s].end()) return parts_of(s, start);
  const std::vector<std::uint64_t> left(found->left.begin(), found->left.end());
  deferred_[s].erase(found);
  return left;
}

void stage_cluster::fill_gap(std::uint32_t s) {
  if (busy_[s] || piece_ends_[s] > now_) return;
  const auto found =
      std::ranges::find_if(deferred_[s], [](const deferred& each) { return !each.left.empty(); });
  if (found == deferred_[s].end()) return;
  piece_ends_[s] = now_ + found->left.front();
  found->left.pop_front();
  at(piece_ends_[s], looks_for_work, [this, s] { fill_gap(s); });
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
  for (std::uint64_t step = restarted_after_ + 1; step <= options_.steps; ++step)
    if (log_[{s, current(step)}].size() != plan_of(step, s).actions.size())
      fault_ = "stage " + std::to_string(s) + " did not complete " + to_string(current(step)) +
               ": " + cores_[s].waiting_for();
  for (const auto& [who, actions] : log_)
    if (who.first == s) check_order(s, who.second, actions);
  if (cores_[s].waiting_for() != "no step is announced")
    fault_ = "stage " + std::to_string(s) + " is not idle: " + cores_[s].waiting_for();
}

// What was done is itself a sound beginning of a plan: the checker says so when what is left of the
// plan comes after it.
void stage_cluster::check_order(std::uint32_t s, const step_key& key,
                                const std::vector<action>& actions) {
  const stage_plan& whole = plan_of(key.step.value, s);
  stage_plan done{actions, whole.memory_cap};
  for (const action& what : whole.actions)
    if (std::ranges::find(actions, what) == actions.end()) done.actions.push_back(what);
  const auto sound =
      check_stage(done, {s}, options_.training.microbatches, layout_.chunks,
                  trains_[key.step.value] ? step_kind::training : step_kind::evaluation);
  if (!sound) fault_ = to_string(key) + ": " + sound.error().text;
  if (options_.how == execution::planned && done.actions != whole.actions)
    fault_ = "stage " + std::to_string(s) + " left the order of its plan";
}

}  // namespace troupe::tests
