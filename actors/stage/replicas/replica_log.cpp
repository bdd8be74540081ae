#include "actors/stage/replicas/replica_log.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace troupe::actors {
namespace {

const engine::step_key& step_of(const sent_to_replicas& what) {
  return std::visit([](const auto& message) -> const engine::step_key& { return message.step; },
                    what.what);
}

bool is_sum(const sent_to_replicas& what) {
  const auto* const gradients = std::get_if<replica_gradients>(&what.what);
  return gradients != nullptr && gradients->summed;
}

void post(stage_pointer self, std::uint32_t rank, const sent_to_replicas& what) {
  const auto& to = self->state.end.replicas.stage_of(rank);
  std::visit([&](const auto& message) { send_tensors(self, to, message, what.made); }, what.what);
}

/// The own parameters as they are now: the update of the step was the last one.
void post_parameters(stage_pointer self, std::uint32_t rank, const engine::step_key& key) {
  const auto& replicas = self->state.end.replicas;
  const auto& buckets = replicas.core.buckets();
  const auto own = replicas.core.rank();
  for (std::uint32_t i = 0; i < buckets.size(); ++i)
    if (buckets[i].owner == own)
      send_tensors(self, replicas.stage_of(rank),
                   replica_parameters{key, i, own, replicas.values_of(i), {}},
                   self->state.streams->mark());
}

}  // namespace

void send_to_replicas(stage_pointer self, sent_to_replicas what) {
  auto& state = self->state;
  const auto& core = state.end.replicas.core;
  for (std::uint32_t rank = 0; rank < core.ranks(); ++rank)
    if (rank != core.rank() && rank == what.to.value_or(rank)) post(self, rank, what);
  if (!is_sum(what)) remember(state, std::move(what));
}

void remember(stage_state& state, sent_to_replicas what) {
  if (state.replay.window.contains(step_of(what))) state.replay.sums.push_back(std::move(what));
}

const sent_to_replicas* remembered_sum(const stage_state& state, const engine::step_key& key,
                                       std::size_t bucket) {
  const auto found = std::ranges::find_if(state.replay.sums, [&](const auto& each) {
    return is_sum(each) && step_of(each) == key &&
           std::get<replica_gradients>(each.what).bucket == bucket;
  });
  return found == state.replay.sums.end() ? nullptr : &*found;
}

void send_parameters(stage_pointer self, const engine::step_key& key) {
  const auto& core = self->state.end.replicas.core;
  for (std::uint32_t rank = 0; rank < core.ranks(); ++rank)
    if (rank != core.rank()) post_parameters(self, rank, key);
  self->state.replay.shared = key;
}

// A later update would need the vote of the one that is replaced, which it casts when it has all
// parameters of this step: so those are still as they were sent.
void replace_replica(stage_pointer self, std::uint32_t rank, const stage_actor& by,
                     const engine::step_key& from) {
  auto& replicas = self->state.end.replicas;
  replicas.replace(rank, by);
  replicas.core.start_over(rank, from);
  replicas.gather.start_over(rank, from);
  for (const auto& each : self->state.replay.sums)
    if (step_of(each) >= from && !is_sum(each) && each.to.value_or(rank) == rank)
      post(self, rank, each);
  if (const auto& shared = self->state.replay.shared; shared && *shared >= from)
    post_parameters(self, rank, *shared);
}

void forget_sums_before(stage_state& state, const engine::step_key& first) {
  state.end.replicas.core.forget_before(first);
  std::erase_if(state.replay.sums, [&](const auto& each) { return step_of(each) < first; });
}

}  // namespace troupe::actors
