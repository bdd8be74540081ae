#include "actors/stage/connect.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "actors/stage/replica_end.hpp"

namespace troupe::actors {
namespace {

std::vector<slice_link> to_links(const std::vector<neighbour>& from) {
  std::vector<slice_link> links;
  links.reserve(from.size());
  for (const auto& [stage, chunk] : from)
    links.push_back({caf::actor_cast<stage_actor>(stage), chunk});
  return links;
}

/// Whether a slice has neighbours exactly where the model goes on.
bool fits(const engine::stage_options& place, const neighbour& before, const neighbour& after) {
  return (before.stage == nullptr) == place.is_first && (after.stage == nullptr) == place.is_last;
}

/// How its steps end from now on.
void couple(stage_state& state, const connect_stage& to) {
  auto& end = state.end;
  end.ties = to.ties;
  end.coordinator = caf::actor_cast<step_coordinator_actor>(to.coordinator);
  end.may_leave_out = to.may_leave_out;
  engine::step_end_rules rules{.stage = to.place,
                               .may_leave_out = to.may_leave_out,
                               .clips_norm = to.clips_norm,
                               .accumulate = end.accumulate};
  for (const auto& tie : to.ties) rules.ties.insert(tie.parameter);
  end.replicas = replica_sum(to.replicas, end.parameters, state.modules.size());
  rules.reduces = end.replicas.is_needed();
  rules.always_votes = !to.keepers.empty();
  rules.logs = to.logs;
  rules.tells_squares = to.replicas.own == 0 || to.replicas.shares_state;
  end.core = engine::step_end_core(std::move(rules));
}

}  // namespace

caf::result<acknowledged> on_connect(stage_pointer self, const connect_stage& to) {
  auto& state = self->state;
  const auto refuse = [&](const char* why) {
    return to_caf({errc::bad_config, state.name + ": " + why});
  };
  if (to.before.size() != state.modules.size() || to.after.size() != state.modules.size())
    return refuse("it needs neighbours for each of its chunks");
  for (std::size_t chunk = 0; chunk < state.modules.size(); ++chunk) {
    const auto& place = state.modules[chunk]->options();
    if (!fits(place, to.before[chunk], to.after[chunk]) ||
        (!to.feeder && (place.is_first || place.is_last)))
      return refuse("its neighbours do not fit its place");
  }
  if (to.credits < 1) return refuse("an edge needs at least one credit");
  if (!std::ranges::all_of(to.ties, [](const tied_parameter& tie) { return bool(tie.other); }))
    return refuse("a tie of it names no other stage");
  if ((to.may_leave_out || to.clips_norm || !to.keepers.empty()) && !to.coordinator)
    return refuse("its steps depend on those of other stages, but it has no coordinator");
  if (to.replicas.logical < 1 ||
      (!to.replicas.stages.empty() && to.replicas.own >= to.replicas.stages.size()))
    return refuse("its replica is none of those it is told of");
  if (!std::ranges::all_of(to.replicas.stages, [](const auto& stage) { return bool(stage); }))
    return refuse("a replica of it is no stage");
  if (to.replicas.sums > engine::replica_sum_way::fast)
    return refuse("its replicas are to sum in a way that there is not");
  if (!std::ranges::all_of(to.keepers, [](const auto& keeper) { return bool(keeper); }))
    return refuse("a keeper of its versions is none");
  if (to.logs && (to.keepers.empty() || to.replicas.stages.size() > 1))
    return refuse("it is to log its edges, which needs keepers, and one replica");
  if (!state.steps.empty()) return refuse("it cannot be connected while a step is under way");
  // Replicas whose actions wait for each other take them in one order: that of the plan.
  const auto how = to.replicas.synced_norm ? engine::execution::planned : engine::execution::ready;
  state.core = engine::stage_core(to.credits, how, to.logs);
  state.plans.clear();
  state.before = to_links(to.before);
  state.after = to_links(to.after);
  state.feeder = caf::actor_cast<feeder_actor>(to.feeder);
  state.versions = {.keepers = {}, .stage = to.place.value};
  for (const auto& each : to.keepers)
    state.versions.keepers.push_back(caf::actor_cast<keeper_actor>(each));
  state.versions.stores =
      stores_core(to.keepers.size(), to.logs ? std::size_t{kept_versions::most} : 0);
  state.replay = {.logs = to.logs,
                  .window = engine::replay_window(state.end.accumulate),
                  .begun = state.replay.begun};
  couple(state, to);
  if (auto joined = join_replicas(self, to.replicas); !joined)
    return to_caf({joined.error().code, state.name + ": " + joined.error().text});
  return acknowledged{};
}

}  // namespace troupe::actors
