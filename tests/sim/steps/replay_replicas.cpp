#include <algorithm>
#include <bit>
#include <utility>
#include <variant>

#include "engine/collective/all_gather_core.hpp"
#include "engine/collective/all_reduce_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "tests/sim/steps/answers.hpp"

// How the replicas of a stage add up their gradients, and what they send again to one that is
// replaced.

namespace troupe::tests {

using namespace engine;

namespace {

constexpr std::uint64_t bytes_of_bucket = 1, most_in_flight = 1;

/// A number for all that ranks gave, in their order.
std::uint64_t sum_of(const std::map<std::uint32_t, std::uint64_t>& of_ranks) {
  std::uint64_t sum = 0;
  for (const auto& [rank, value] : of_ranks) sum = mix({sum, value});
  return sum;
}

}  // namespace

// A bucket for each chunk, of which the gradients are final with its last backward, and as many
// that are final with the step.
all_reduce_core replay_company::reduction_of(std::uint32_t place) const {
  const auto ranks = options_.replicas;
  std::vector<bucket> buckets;
  for (std::uint32_t i = 0; ranks > 1 && i < 2 * layout_.chunks; ++i)
    buckets.push_back({(stage_of(place) + i) % ranks, {i}, bytes_of_bucket});
  return {replica_of(place),  ranks,
          std::move(buckets), most_in_flight,
          bucket_way::parts,  options_.accumulate + std::size_t{1}};
}

void replay_company::gradients_final(process& at, const step_key& key, const action& what) {
  const bool is_of_weights =
      what.kind == action_kind::backward || what.kind == action_kind::weight_gradient;
  if (options_.replicas == 1 || !is_of_weights ||
      ++at.weights_done[{key, what.chunk}] < options_.training.microbatches)
    return;
  at.weights_done.erase({key, what.chunk});
  const auto rank = replica_of(at.self.stage);
  at.parts[{key, what.chunk}][rank] = at.sums[what.chunk];
  reduce(at, {at.reduce->ready(key, what.chunk)});
}

void replay_company::reduce(process& at, const sum_answer& answer) {
  const auto& effects = answer.effects;
  if (!effects)
    return fault("the sum of stage " + std::to_string(at.self.stage) +
                 " refused: " + effects.error().text);
  for (const auto& effect : *effects) reduce_one(at, {effect});
}

void replay_company::reduce_one(process& at, const sum_effect& one) {
  const auto& effect = one.what;
  using kind = sent_part::what;
  const auto rank = replica_of(at.self.stage);
  // Of a bucket that is final with the step.
  const auto own = [&](const bucket_key& of) {
    if (of.second < layout_.chunks) return at.parts.at(of).at(rank);
    return mix({at.own_sum, of.second});
  };
  if (const auto* part = std::get_if<engine::send_part>(&effect)) {
    const bucket_key of{part->key, part->bucket};
    const auto value = own(of);
    at.parts.erase(of);
    send_part_of(
        at, {kind::part, part->key, part->bucket, at.reduce->buckets()[part->bucket].owner, value});
  } else if (const auto* add = std::get_if<add_parts>(&effect)) {
    const bucket_key of{add->key, add->bucket};
    at.parts[of][rank] = own(of);
    const auto value = sum_of(at.parts.extract(of).mapped());
    after(a_delay(), [this, who = at.self, of, value] {
      auto* const there = this->at(who);
      if (there == nullptr) return;
      there->bucket_sums[of] = value;
      there->sent_parts.push_back({sent_part::what::sum, of.first, of.second, {}, value});
      reduce(*there, {there->reduce->own_added(of.first, of.second)});
    });
  } else if (const auto* send = std::get_if<send_sum>(&effect)) {
    const auto made = std::ranges::find_if(at.sent_parts, [&](const sent_part& each) {
      return each.kind == kind::sum && each.key == send->key && each.bucket == send->bucket;
    });
    if (made == at.sent_parts.end()) return fault("a sum is to be sent that is forgotten");
    auto sum = *made;
    sum.to = send->to;
    send_part_of(at, sum);
  } else if (const auto* rest_of = std::get_if<send_rest>(&effect)) {
    send_part_of(at, {kind::rest,
                      rest_of->key,
                      at.reduce->rest_of_step(),
                      {},
                      at.rests.at(rest_of->key).at(rank)});
  } else if (const auto* over = std::get_if<engine::all_reduced>(&effect)) {
    all_reduced(at, over->key);
  }
}

void replay_company::send_part_of(process& at, const sent_part& what) {
  for (std::uint32_t rank = 0; rank < options_.replicas; ++rank)
    if (rank != replica_of(at.self.stage) && rank == what.to.value_or(rank))
      post_part(at, rank, what);
  if (what.kind != sent_part::what::sum) at.sent_parts.push_back(what);
}

void replay_company::post_part(process& at, std::uint32_t rank, const sent_part& what) {
  const auto place = rank * layout_.stages + stage_of(at.self.stage);
  post(at.self, {place, at.known[place]},
       [this, from = at.self, what](process& there) { part_arrived(there, from, what); });
}

replay_company::sum_answer replay_company::tell_reduction(process& at, std::uint32_t rank,
                                                          const sent_part& what) {
  if (what.kind == sent_part::what::part)
    return {at.reduce->part_arrived(what.key, what.bucket, rank)};
  if (what.kind == sent_part::what::sum)
    return {at.reduce->sum_arrived(what.key, what.bucket, rank)};
  return {at.reduce->rest_arrived(what.key, rank)};
}

void replay_company::part_arrived(process& at, const process_id& from, const sent_part& what) {
  if (!admits(at, from)) return;
  const auto rank = replica_of(from.stage);
  const bool repeats = at.reduce->is_repeat(what.key, what.bucket, rank);
  if (!repeats && what.kind == sent_part::what::part)
    at.parts[{what.key, what.bucket}][rank] = what.value;
  if (!repeats && what.kind == sent_part::what::sum)
    at.bucket_sums[{what.key, what.bucket}] = what.value;
  if (!repeats && what.kind == sent_part::what::rest) at.rests[what.key][rank] = what.value;
  reduce(at, tell_reduction(at, rank, what));
  if (options_.repeats && below(8) == 0 && tell_reduction(at, rank, what).effects)
    fault("stage " + std::to_string(at.self.stage) + " took a part of a sum twice");
}

void replay_company::all_reduced(process& at, const step_key& key) {
  at.own_sum = sum_of(at.rests.extract(key).mapped());
  for (std::size_t i = 0; i < at.reduce->buckets().size(); ++i)
    at.own_sum = mix({at.own_sum, at.bucket_sums.extract({key, i}).mapped()});
  at.total = at.own_sum;
  end(at, {at.end->reduced(key)});
}

void replay_company::replace_replica(process& at, std::uint32_t place, const step_key& from) {
  const auto rank = replica_of(place);
  at.reduce->start_over(rank, from);
  at.gather->start_over(rank, from);
  for (const auto& each : at.sent_parts)
    if (each.key >= from && each.kind != sent_part::what::sum && each.to.value_or(rank) == rank)
      post_part(at, rank, each);
  if (at.shared && *at.shared >= from) post_values(at, rank, *at.shared);
}

// Where replicas share out the update: a number for each bucket's parameters.

void replay_company::update_own(process& at, double scale) {
  const auto accumulated = std::exchange(at.accumulated, 0);
  at.updated.clear();
  for (std::size_t i = 0; i < at.reduce->buckets().size(); ++i)
    if (at.reduce->buckets()[i].owner == replica_of(at.self.stage))
      at.updated[i] = mix({at.weights, accumulated, i, std::bit_cast<std::uint64_t>(scale)});
}

void replay_company::share_update(process& at, const step_key& key) {
  for (std::uint32_t rank = 0; rank < options_.replicas; ++rank)
    if (rank != replica_of(at.self.stage)) post_values(at, rank, key);
  at.shared = key;
  gathered(at, key, at.gather->sent(key));
}

void replay_company::post_values(process& at, std::uint32_t rank, const step_key& key) {
  const auto place = rank * layout_.stages + stage_of(at.self.stage);
  for (const auto& [bucket, value] : at.updated)
    post(at.self, {place, at.known[place]},
         [this, from = at.self, of = bucket_key{key, bucket}, value = value](process& there) {
           values_arrived(there, from, of, value);
         });
}

void replay_company::values_arrived(process& at, const process_id& from, const bucket_key& of,
                                    std::uint64_t value) {
  if (!admits(at, from)) return;
  const auto& [key, bucket] = of;
  const auto rank = replica_of(from.stage);
  if (!at.gather->is_repeat(key, bucket)) at.values[of] = value;
  const auto all = at.gather->arrived(key, bucket, rank);
  if (options_.repeats && below(8) == 0 && at.gather->arrived(key, bucket, rank))
    fault("stage " + std::to_string(at.self.stage) + " took parameters twice");
  gathered(at, key, all);
}

void replay_company::gathered(process& at, const step_key& key, const result<bool>& all) {
  if (!all)
    return fault("stage " + std::to_string(at.self.stage) +
                 " refused parameters: " + all.error().text);
  if (!*all) return;
  at.weights = 0;
  for (std::size_t i = 0; i < at.reduce->buckets().size(); ++i) {
    const auto own = at.updated.find(i);
    at.weights =
        mix({at.weights, own != at.updated.end() ? own->second
                                                 : at.values.extract(bucket_key{key, i}).mapped()});
  }
  after(a_delay(), [this, who = at.self, key] {
    if (auto* const there = this->at(who)) end(*there, {there->end->ended(key)});
  });
}

}  // namespace troupe::tests
