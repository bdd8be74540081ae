#include <bit>
#include <utility>
#include <variant>

#include "tests/sim/replay_company.hpp"

// What a stage's process does: its actions and the ends of its steps.

namespace troupe::tests {

using namespace engine;

namespace {

std::uint64_t number_of(const action& what) {
  return mix({what.microbatch.value, what.chunk});
}

}  // namespace

// A stage: its actions.

void replay_company::perform(process& at, const result<stage_effects>& effects) {
  if (!effects)
    return fault("stage " + std::to_string(at.self.stage) + " refused: " + effects.error().text);
  for (const auto& effect : *effects) {
    if (const auto* start = std::get_if<start_action>(&effect)) work(at, *start);
    if (const auto* output = std::get_if<send_output>(&effect)) send(at, *output);
    if (const auto* granted = std::get_if<grant_credit>(&effect)) grant(at, *granted);
    const auto* const done = std::get_if<step_finished>(&effect);
    if (done && done->kind == step_kind::training) end(at, at.end.actions_done(done->key));
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
  perform(at, at.core.action_done(what.key, what.what));
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
    perform(there, there.core.credit_arrived(on, used.key, used.microbatch, chunk));
  });
}

// A stage: the end of its steps.

bool replay_company::shares_tie(std::uint32_t place) const {
  const auto stage = stage_of(place);
  return options_.ties && layout_.stages > 1 && (stage == 0 || stage + 1 == layout_.stages);
}

std::uint32_t replay_company::other_end(std::uint32_t place) const {
  return place - stage_of(place) + (stage_of(place) == 0 ? layout_.stages - 1 : 0);
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
  } else if (const auto* all = std::get_if<sum_replicas>(&effect)) {
    at.rests[all->key][replica_of(at.self.stage)] = mix({at.own_sum});
    reduce(at, at.reduce.complete(all->key));
  } else if (const auto* share = std::get_if<share_ties>(&effect)) {
    at.sent_ties.push_back({share->key, at.own_sum});
    send_tie(at, at.sent_ties.back());
  } else if (const auto* with = std::get_if<sum_with_ties>(&effect)) {
    const auto others = at.tied.extract(with->key);
    at.total = at.own_sum + (others ? others.mapped() : 0);
    later(
        [this, what = *with](process& there) { gradients_complete(there, what.key, what.terms); });
  } else if (const auto* cast = std::get_if<cast_vote>(&effect)) {
    const auto send = [this, who = at.self, what = cast->vote] {
      if (auto* const there = this->at(who)) vote(*there, what);
    };
    at.stores.is_stored() ? send() : at.when_stored.push_back(send);
  } else if (const auto* apply = std::get_if<apply_step>(&effect);
             apply && apply->scale && options_.shares_state) {
    later([this, what = *apply](process& there) {
      update_own(there, *what.scale);
      share_update(there, what.key);
    });
  } else if (apply && apply->scale) {
    const auto scale = std::bit_cast<std::uint64_t>(*apply->scale);
    note_update(at, scale);
    at.weights = mix({at.weights, std::exchange(at.accumulated, 0), scale});
    later([this, key = apply->key](process& there) { end(there, there.end.ended(key)); });
  } else if (const auto* undo = std::get_if<undo_step>(&effect)) {
    if (undo->drops_sums) at.accumulated = 0;
    later([this, key = undo->key](process& there) { end(there, there.end.ended(key)); });
  } else if (const auto* over = std::get_if<finish_step>(&effect)) {
    const auto number = at.numbers.at(over->key);
    if (at.end.is_between_updates()) make_version(at, number, true);
    at.last_done = number;
    if (const auto write = at.writes.extract(number)) write_slice(at, number, write.mapped());
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
    if (departed_voters_.has_departed(from)) return;
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
    at.reduce.forget_before(*first);
    std::erase_if(at.sent_parts, [&](const sent_part& each) { return each.key < *first; });
  }
  end(at, at.end.decided(what));
}

}  // namespace troupe::tests
