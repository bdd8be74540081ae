#include <bit>
#include <utility>
#include <variant>

#include "engine/collective/all_reduce_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "tests/sim/steps/answers.hpp"

// A stage: the ends of its steps.

namespace troupe::tests {

using namespace engine;

bool replay_company::shares_tie(std::uint32_t place) const {
  const auto stage = stage_of(place);
  return options_.ties && layout_.stages > 1 && (stage == 0 || stage + 1 == layout_.stages);
}

std::uint32_t replay_company::other_end(std::uint32_t place) const {
  return place - stage_of(place) + (stage_of(place) == 0 ? layout_.stages - 1 : 0);
}

void replay_company::end(process& at, const end_answer& answer) {
  const auto& effects = answer.effects;
  if (!effects)
    return fault("the end of a step on stage " + std::to_string(at.self.stage) +
                 " refused: " + effects.error().text);
  for (const auto& effect : *effects) end_one(at, {effect});
}

void replay_company::end_one(process& at, const end_effect& one) {
  const auto& effect = one.what;
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
                    : end(there, {there.end->own_summed(what.key)});
    });
  } else if (const auto* all = std::get_if<sum_replicas>(&effect)) {
    at.rests[all->key][replica_of(at.self.stage)] = mix({at.own_sum});
    reduce(at, {at.reduce->complete(all->key)});
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
    later([this, key = apply->key](process& there) { end(there, {there.end->ended(key)}); });
  } else if (const auto* undo = std::get_if<undo_step>(&effect)) {
    if (undo->drops_sums) at.accumulated = 0;
    later([this, key = undo->key](process& there) { end(there, {there.end->ended(key)}); });
  } else if (const auto* over = std::get_if<finish_step>(&effect)) {
    const auto number = at.numbers.at(over->key);
    if (at.end->is_between_updates()) make_version(at, number, true);
    at.last_done = number;
    if (const auto write = at.writes.extract(number)) write_slice(at, number, write.mapped());
    tell_trainer(at.self, [this, from = at.self, key = over->key, loss = at.losses[over->key]] {
      answered(from, key, loss);
    });
    update_done(at, over->key);
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
  end(at, {at.end->gradients_ready(key, found)});
}

void replay_company::send_tie(process& at, const sent_tie& what) {
  const auto other = other_end(at.self.stage);
  post(at.self, {other, at.known[other]}, [this, from = at.self, what](process& there) {
    tie_arrived(there, from, what.key, what.value);
  });
}

void replay_company::tie_arrived(process& at, const process_id& from, const step_key& key,
                                 std::uint64_t value) {
  if (!admits(at, from) || at.end->take_repeat(key, tied)) return;
  const auto effects = at.end->tie_arrived(key, tied);
  if (effects) at.tied[key] = value;
  end(at, {effects});
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
    forget_before(at, *first);
    at.end->forget_before(*first);
    std::erase_if(at.sent_ties, [&](const sent_tie& each) { return each.key < *first; });
    at.reduce->forget_before(*first);
    std::erase_if(at.sent_parts, [&](const sent_part& each) { return each.key < *first; });
  }
  end(at, {at.end->decided(what)});
}

}  // namespace troupe::tests
