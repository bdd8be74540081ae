#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "engine/collective/all_gather_core.hpp"
#include "engine/step/stage_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "tests/sim/steps/answers.hpp"

// A stage: the order of its actions, and what it exchanges with its neighbours.

namespace troupe::tests {

using namespace engine;

namespace {

std::uint64_t number_of(const action& what) {
  return mix({what.microbatch.value, what.chunk});
}

}  // namespace

void replay_company::open_cores(process& at) const {
  const auto stage = at.self.stage;
  step_end_rules rules{.stage = {stage},
                       .may_leave_out = true,
                       .clips_norm = true,
                       .accumulate = options_.accumulate,
                       .reduces = options_.replicas > 1,
                       .tells_squares = options_.shares_state || replica_of(stage) == 0,
                       .always_votes = true,
                       .logs = true};
  if (shares_tie(stage)) rules.ties = {tied};
  at.core = std::make_shared<stage_core>(options_.credits, execution::ready, true);
  at.end = std::make_shared<step_end_core>(rules);
  at.reduce = std::make_shared<all_reduce_core>(reduction_of(stage));
  std::vector<std::uint32_t> owners;
  for (const auto& each : at.reduce->buckets()) owners.push_back(each.owner);
  at.gather =
      std::make_shared<all_gather_core>(replica_of(stage), options_.replicas, std::move(owners));
}

void replay_company::begin(process& at, const order& what, const step_key& done_before) {
  const auto stage = stage_of(at.self.stage);
  const stage_answer answer{
      at.core->begin({what.key, what.trains ? plans_[stage] : evaluation_plans_[stage], stage == 0,
                      layout_.slice_at(layout_.virtual_stages() - 1).stage == stage})};
  at.first_keys[what.key] = what.first;
  forget_evaluations(at, done_before);
  if (what.trains) {
    if (auto begun = at.end->begin(what.key, what.number); !begun) return fault(begun.error().text);
    at.window.begun(what.number, what.key);
    at.numbers[what.key] = what.number;
  } else {
    at.window.begun_evaluation(what.key);
  }
  perform(at, answer);
}

void replay_company::forget_evaluations(process& at, const step_key& done_before) {
  for (const auto& key : at.window.done_before(done_before)) {
    at.core->forget(key);
    std::erase_if(at.outputs, [&](const auto& each) {
      const auto& [of, on] = each.first;
      const auto& [step, chunk, microbatch] = of;
      return step == key && !at.core->holds(on, step, microbatch, chunk);
    });
  }
}

void replay_company::perform(process& at, const stage_answer& answer) {
  const auto& effects = answer.effects;
  if (!effects)
    return fault("stage " + std::to_string(at.self.stage) + " refused: " + effects.error().text);
  for (const auto& effect : *effects) {
    if (const auto* start = std::get_if<start_action>(&effect)) work(at, *start);
    if (const auto* output = std::get_if<send_output>(&effect)) send(at, *output);
    if (const auto* granted = std::get_if<grant_credit>(&effect)) grant(at, *granted);
    const auto* const done = std::get_if<step_finished>(&effect);
    if (done && done->kind == step_kind::training) end(at, {at.end->actions_done(done->key)});
    if (done && done->kind == step_kind::evaluation)
      tell_trainer(at.self, [this, from = at.self, key = done->key, loss = at.losses[done->key]] {
        answered(from, key, loss);
      });
  }
}

void replay_company::work(process& at, const start_action& what) {
  const auto& [key, act] = what;
  at.log[key].push_back(act);
  if (!begun_.emplace(at.self, key, act.kind, act.chunk, act.microbatch).second)
    fault("a process computes an action again");
  compute(at, what);
  after(a_delay(), [this, who = at.self, what] {
    if (auto* const there = this->at(who)) done(*there, what);
  });
}

void replay_company::done(process& at, const start_action& what) {
  gradients_final(at, what.key, what.what);
  perform(at, {at.core->action_done(what.key, what.what)});
}

// All numbers are taken when the action begins: weights do not change before it ends.
void replay_company::compute(process& at, const start_action& what) {
  const auto& [key, act] = what;
  const tensor_key where{key, act.chunk, act.microbatch};
  const auto slice = layout_.virtual_stage_of({stage_of(at.self.stage), act.chunk});
  const bool is_last = slice + 1 == layout_.virtual_stages();
  if (act.kind == action_kind::forward) {
    const auto label = is_last ? at.labels.extract(where).mapped() : 0;
    const auto output = mix({at.weights, at.inputs.extract(where).mapped(), label, number_of(act),
                             at.first_keys.at(key).step.value});
    if (at.numbers.contains(key)) at.contexts[where] = output;
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
  const auto slice = layout_.virtual_stage_of({stage_of(at.self.stage), what.chunk});
  const auto [stage, chunk] =
      slice_beside(at.self.stage, what.on == edge::input ? slice + 1 : slice - 1);
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
    if (on == edge::input) return at.core->input_arrived(step, microbatch, chunk);
    if (on == edge::target) return at.core->target_arrived(step, microbatch, chunk);
    return at.core->gradient_arrived(step, microbatch, chunk);
  };
  const bool is_repeat = at.core->is_repeat(on, step, microbatch, chunk);
  if (!is_repeat)
    (on == edge::input ? at.inputs : on == edge::target ? at.labels : at.gradients)[key] = value;
  perform(at, {tell()});
  if (options_.repeats && below(8) == 0 && tell())
    fault("stage " + std::to_string(at.self.stage) + " took a message twice");
}

void replay_company::grant(process& at, const grant_credit& what) {
  const auto at_slice = layout_.virtual_stage_of({stage_of(at.self.stage), what.chunk});
  const edge_place used{what.key, what.microbatch};
  const bool is_fed = what.from == edge::target || (what.from == edge::input && at_slice == 0);
  const process_id feeder{stages_, at.feeder};
  const auto [stage, chunk] =
      is_fed ? slice{}
             : slice_beside(at.self.stage, what.from == edge::input ? at_slice - 1 : at_slice + 1);
  const process_id sender =
      is_fed ? feeder : process_id{stage, stage == at.self.stage ? at.self.start : at.known[stage]};
  if (unused_[{sender, at.self, what.from, what.chunk}].erase({what.key, what.microbatch}) == 0)
    fault("a credit for what was not sent");
  if (is_fed)
    return after(a_delay(), [this, from = at.self, feeder, on = what.from, used] {
      carry(node_of(from), node_of(feeder),
            [this, from, feeder, on, used] { credit_feeder(from, feeder.start, on, used); });
    });
  post(at.self, sender, [this, from = at.self, on = what.from, used, chunk](process& there) {
    if (!admits(there, from)) return;
    perform(there, {there.core->credit_arrived(on, used.key, used.microbatch, chunk)});
  });
}

/// Why it cannot be, or "".
std::string replay_company::replace_at(process& at, const process_id& by, std::uint32_t keeper,
                                       const step_key& from) {
  const auto stage = by.stage;
  if (!at.window.reaches(from)) return "what was sent is forgotten";
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
  if (is_near && at.end->waits_before(from)) return "a neighbour is still replayed";
  at.departed.replaced({stage, at.known[stage]});
  at.known[stage] = by.start;
  const bool has_moved = std::exchange(at.keepers[stage], keeper) != keeper;
  at.core->start_over(which, from);
  if (is_tied) {
    at.end->start_over({tied}, from);
    for (const auto& each : at.sent_ties)
      if (each.key >= from) send_tie(at, each);
  }
  if (is_replica) replace_replica(at, stage, from);
  if (has_moved && beside_[at.self.stage].stage == stage) keeper_moved(at);
  return "";
}

/// Why it cannot be, or "".
std::string replay_company::replace_feeder_at(process& at, std::uint32_t feeder,
                                              const step_key& from) {
  if (!at.window.reaches(from)) return "what was fed is forgotten";
  if (at.end->waits_before(from)) return "an end is still replayed";
  at.feeder = feeder;
  shared_edges which;
  if (slice_beside(at.self.stage, 0).stage == at.self.stage) which.data = 0;
  const auto last = slice_beside(at.self.stage, layout_.virtual_stages() - 1);
  if (last.stage == at.self.stage) which.labels = last.chunk;
  at.core->start_over(which, from);
  return "";
}

void replay_company::resume(process& at) {
  perform(at, {at.core->resume()});
}

void replay_company::update_done(process& at, const step_key& key) {
  perform(at, {at.core->update_done(key)});
}

void replay_company::forget_before(process& at, const step_key& first) {
  at.core->forget_before(first);
  std::erase_if(at.outputs,
                [&](const auto& each) { return std::get<step_key>(each.first.first) < first; });
}

std::string replay_company::waiting_for(const process& at) {
  return at.core->waiting_for();
}

}  // namespace troupe::tests
