#include "actors/stage/connect.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "actors/stage/mirror/version_updates.hpp"
#include "actors/stage/replicas/join.hpp"
#include "actors/stage/steps/step_order.hpp"
#include "actors/stage/work/step_end.hpp"

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

bool is_there(const caf::strong_actor_ptr& actor) {
  return actor != nullptr;
}

bool is_port(const edge_port& each) {
  return each.other && each.on != engine::edge::target && each.on <= engine::edge::gradient &&
         each.sockets <= engine::socket_reach::network &&
         (each.by == engine::edge_transport::nccl || each.by == engine::edge_transport::ucx);
}

/// Why the stage cannot be one of these replicas; null: it can.
const char* why_refused(const replica_group& replicas) {
  if (replicas.logical < 1 || (!replicas.stages.empty() && replicas.own >= replicas.stages.size()))
    return "its replica is none of those it is told of";
  if (!std::ranges::all_of(replicas.stages, is_there)) return "a replica of it is no stage";
  if (replicas.sums > engine::replica_sum_way::fast)
    return "its replicas are to sum in a way that there is not";
  if (replicas.sockets > engine::socket_reach::network)
    return "its replicas are to use a network that there is not";
  return nullptr;
}

/// Why the stage cannot take the place that it is told; null: it can.
const char* why_refused(const stage_state& state, const connect_stage& to) {
  const auto& modules = state.modules;
  if (to.before.size() != modules.size() || to.after.size() != modules.size())
    return "it needs neighbours for each of its chunks";
  for (std::size_t chunk = 0; chunk < modules.size(); ++chunk) {
    const auto& place = modules[chunk]->options();
    if (!fits(place, to.before[chunk], to.after[chunk]) ||
        (!to.feeder && (place.is_first || place.is_last)))
      return "its neighbours do not fit its place";
  }
  if (to.credits < 1) return "an edge needs at least one credit";
  if (!std::ranges::all_of(to.ties, is_there, &tied_parameter::other))
    return "a tie of it names no other stage";
  if ((to.may_leave_out || to.clips_norm || !to.keepers.empty()) && !to.coordinator)
    return "its steps depend on those of other stages, but it has no coordinator";
  if (const auto* const why = why_refused(to.replicas)) return why;
  if (!std::ranges::all_of(to.keepers, is_there)) return "a keeper of its versions is none";
  if (to.logs && (to.keepers.empty() || !to.replicas.is_replaceable()))
    return "it is to log its edges, which needs keepers, and replicas that sum over links, each "
           "with batch norms of its own";
  if (!std::ranges::all_of(to.ports, is_port)) return "a port of it is none that there is";
  if (to.logs && !to.ports.empty())
    return "it is to log its edges, but what goes by ports is not sent again";
  return state.steps.empty() ? nullptr : "it cannot be connected while a step is under way";
}

/// Leaves the old ports, begins to join those in `ports`, and watches for their ends.
result<void> join_edges(stage_pointer self, const std::vector<edge_port>& ports) {
  auto& state = self->state;
  state.edges = edge_ports();
  auto joined = edge_ports::join(ports, state.libraries, state.streams->device());
  if (!joined) return tl::unexpected(joined.error());
  state.edges = std::move(*joined);
  for (const auto& each : ports) self->monitor(caf::actor_cast<stage_actor>(each.other));
  return {};
}

}  // namespace

caf::result<acknowledged> on_connect(stage_pointer self, const connect_stage& to) {
  auto& state = self->state;
  if (const auto* why = why_refused(state, to))
    return to_caf({errc::bad_config, state.name + ": " + why});
  reset_order(state, to);
  state.before = to_links(to.before);
  state.after = to_links(to.after);
  state.feeder = caf::actor_cast<feeder_actor>(to.feeder);
  state.versions = {.keepers = {}, .stage = to.place.value};
  for (const auto& each : to.keepers)
    state.versions.keepers.push_back(caf::actor_cast<keeper_actor>(each));
  state.versions.spare = to.spare_keeper;
  state.versions.stores =
      stores_core(to.keepers.size(), to.logs ? std::size_t{kept_versions::most} : 0);
  state.versions.updates.forms =
      version_forms_core(to.keepers.size(), state.end.repeatable.has_value());
  for (std::size_t place = 0; place < to.keepers.size(); ++place) ask_keeper(self, place);
  state.replay = {.logs = to.logs,
                  .window = engine::replay_window(state.end.accumulate),
                  .begun = state.replay.begun};
  couple(state, to);
  auto joined = join_replicas(self, to.replicas);
  if (joined) joined = join_edges(self, to.ports);
  if (!joined) return to_caf(error_about(state.name, joined.error()));
  return acknowledged{};
}

}  // namespace troupe::actors
