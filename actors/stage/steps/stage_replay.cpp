#include "actors/stage/steps/stage_replay.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/same_actor.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/stage/replicas/replica_log.hpp"
#include "actors/stage/work/step_end.hpp"
#include "engine/step/stage_core.hpp"
#include "engine/step/step_end_core.hpp"

namespace troupe::actors {
namespace {

/// The edges that end at a stage.
engine::shared_edges edges_to(const stage_state& state, const caf::strong_actor_ptr& other) {
  engine::shared_edges edges;
  for (std::uint32_t chunk = 0; chunk < state.before.size(); ++chunk) {
    if (is_same_actor(state.before[chunk].stage, other)) edges.before.push_back(chunk);
    if (is_same_actor(state.after[chunk].stage, other)) edges.after.push_back(chunk);
  }
  return edges;
}

/// The own parameters that are one weight with one of that stage.
std::set<std::string> shared_parameters(const stage_state& state,
                                        const caf::strong_actor_ptr& other) {
  std::set<std::string> parameters;
  for (const auto& tie : state.end.ties)
    if (is_same_actor(tie.other, other)) parameters.insert(tie.parameter);
  return parameters;
}

/// Which replica of the stage that is; nullopt: none.
std::optional<std::uint32_t> rank_of(const stage_state& state, const caf::strong_actor_ptr& other) {
  const auto& replicas = state.end.replicas;
  if (replicas.core.ranks() < 2) return std::nullopt;
  for (std::uint32_t rank = 0; rank < replicas.core.ranks(); ++rank)
    if (is_same_actor(replicas.stage_of(rank), other)) return rank;
  return std::nullopt;
}

void point_to(stage_state& state, const caf::strong_actor_ptr& lost,
              const caf::strong_actor_ptr& by) {
  for (auto* const links : {&state.before, &state.after})
    for (auto& each : *links)
      if (is_same_actor(each.stage, lost)) each.stage = caf::actor_cast<stage_actor>(by);
  for (auto& tie : state.end.ties)
    if (is_same_actor(tie.other, lost)) tie.other = by;
}

}  // namespace

void forget_decided(stage_pointer self, const engine::step_key& key) {
  auto& state = self->state;
  if (!state.replay.logs) return;
  const auto first = state.replay.window.decided(state.steps.at(key).order.number);
  if (!first) return;
  state.core->forget_before(*first);
  state.end.core->forget_before(*first);
  std::erase_if(state.outputs, [&](const auto& each) { return each.first.first.step < *first; });
  std::erase_if(state.replay.ties, [&](const sent_tie& each) { return each.step < *first; });
  forget_sums_before(state, *first);
}

void forget_evaluations(stage_pointer self, const engine::step_key& done_before) {
  auto& state = self->state;
  for (const auto& key : state.replay.window.done_before(done_before)) {
    state.core->forget(key);
    std::erase_if(state.outputs, [&](const auto& each) {
      const auto& [of, on] = each.first;
      return of.step == key && !state.core->holds(on, key, of.microbatch, of.chunk);
    });
  }
}

namespace {

/// Whether what a lost neighbour or feeder was sent, or is to send again, reaches that far back.
result<void> check_reach(const stage_state& state, const engine::step_key& from) {
  if (!state.replay.window.reaches(from))
    return fail(errc::stale,
                state.name + ": what it sent in " + engine::to_string(from) + " is not remembered");
  if (state.end.core->waits_before(from))
    return fail(errc::stale, state.name + ": it does a step before " + engine::to_string(from) +
                                 " again itself");
  return {};
}

}  // namespace

caf::result<acknowledged> on_replace_neighbour(stage_pointer self, const replace_neighbour& what) {
  auto& state = self->state;
  auto& replay = state.replay;
  if (!replay.logs || !what.lost || !what.by)
    return to_caf({errc::bad_config, state.name + ": a neighbour of it cannot be replaced"});
  forget_evaluations(self, what.done_before);
  const auto edges = edges_to(state, what.lost);
  const auto parameters = shared_parameters(state, what.lost);
  const auto rank = rank_of(state, what.lost);
  const bool is_near = !edges.before.empty() || !edges.after.empty() || !parameters.empty() || rank;
  if (is_near)
    if (const auto reached = check_reach(state, what.from); !reached)
      return to_caf(reached.error());
  point_to(state, what.lost, what.by);
  replay.departed.replaced(what.lost);
  state.core->start_over(edges, what.from);
  state.end.core->start_over(parameters, what.from);
  for (const auto& each : replay.ties)
    if (each.step >= what.from && state.end.ties.at(each.tie).other == what.by)
      post_tie(self, each);
  if (rank) replace_replica(self, *rank, caf::actor_cast<stage_actor>(what.by), what.from);
  replace_keeper(self, what.lost_keeper, what.keeper);
  return acknowledged{};
}

caf::result<acknowledged> on_replace_feeder(stage_pointer self, const replace_feeder& what) {
  auto& state = self->state;
  const auto by = caf::actor_cast<feeder_actor>(what.by);
  if (!state.replay.logs || !state.feeder || !by)
    return to_caf({errc::bad_config, state.name + ": the feeder of it cannot be replaced"});
  forget_evaluations(self, what.done_before);
  if (const auto reached = check_reach(state, what.from); !reached) return to_caf(reached.error());
  state.replay.departed.replaced(
      caf::actor_cast<caf::strong_actor_ptr>(std::exchange(state.feeder, by)));
  engine::shared_edges edges;
  if (state.modules.front()->options().is_first) edges.data = 0;
  if (state.modules.back()->options().is_last)
    edges.labels = static_cast<std::uint32_t>(state.modules.size() - 1);
  state.core->start_over(edges, what.from);
  return acknowledged{};
}

}  // namespace troupe::actors
