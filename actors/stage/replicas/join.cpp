#include "actors/stage/replicas/join.hpp"

#include <functional>
#include <memory>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/messages/optimizer.hpp"

namespace troupe::actors {
namespace {

/// The optimizer keeps the state of what this replica updates, which is all where none shares.
void keep_own_state(stage_pointer self) {
  const auto& end = self->state.end;
  keep_state_of own;
  for (std::size_t i = 0; i < end.parameters.size(); ++i)
    if (end.replicas.owns(i)) own.parameters.push_back(end.parameters[i].name);
  self->send(end.optimizer, std::move(own));
}

/// Both ends of a tie need its sum, whoever updates it.
void know_tied_sums(stage_pointer self) {
  auto& end = self->state.end;
  for (const auto& tie : end.ties) end.replicas.know_everywhere(tie.parameter);
  for (const auto& module : self->state.modules)
    for (const auto& tie : module->ties()) {
      end.replicas.know_everywhere(tie.one);
      end.replicas.know_everywhere(tie.other);
    }
}

result<void> join_port(stage_pointer self, const replica_group& group) {
  auto& state = self->state;
  ++state.connection;
  state.port.reset();
  const bool by_port = group.sums != engine::replica_sum_way::links;
  if (!by_port || group.stages.size() < 2) return {};
  auto joined = state.libraries.sums->join(
      {.name = "the replicas of " + state.name,
       .invitation = group.invitation,
       .rank = group.own,
       .ranks = static_cast<std::uint32_t>(group.stages.size()),
       .on = state.streams->device(),
       .order = group.sums == engine::replica_sum_way::fast ? engine::sum_order::fast
                                                            : engine::sum_order::tree,
       .sockets = group.sockets});
  if (!joined) return tl::unexpected(joined.error());
  state.port = std::move(*joined);
  return {};
}

}  // namespace

sum_offered offer_sum(stage_pointer self, const ask_sum_offer& asked) {
  const auto& state = self->state;
  const auto& by = *state.libraries.of(asked.by);
  const auto on = state.streams->device();
  auto here = own_identity();
  sum_offered answer{{.stage = state.name,
                      .library = {},
                      .why_not = {},
                      .device = on.str(),
                      .machine = std::move(here.host),
                      .network = std::move(here.network),
                      .sockets = by.sockets()}};
  if (auto library = by.library_for(on))
    answer.offer.library = std::move(*library);
  else
    answer.offer.why_not = std::move(library.error().text);
  return answer;
}

caf::result<replicas_invited> on_invite_replicas(stage_pointer self,
                                                 const invite_replicas& wanted) {
  if (wanted.sockets > engine::socket_reach::network)
    return to_caf({errc::bad_frame, self->state.name + ": an invitation to no network there is"});
  const auto& state = self->state;
  auto made =
      state.libraries.of(wanted.by)->invite(wanted.ranks, wanted.sockets, state.streams->device());
  if (!made) return to_caf(error_about(self->state.name, made.error()));
  return replicas_invited{std::move(*made)};
}

result<void> join_replicas(stage_pointer self, const replica_group& group) {
  auto& state = self->state;
  const auto& replicas = state.end.replicas;
  if (auto joined = join_port(self, group); !joined) return joined;
  state.norm.give_up({errc::cancelled, "the stage is connected again"});
  state.norm = stage_norm(group, state.name, state.threads);
  if (replicas.core.ranks() < 2) return {};
  keep_own_state(self);
  know_tied_sums(self);
  for (std::uint32_t rank = 0; rank < replicas.core.ranks(); ++rank)
    if (rank != replicas.core.rank()) self->monitor(replicas.stage_of(rank));
  // Additions wait for memory rather than for a core, and so do not wait for the work thread.
  if (!state.adding)
    state.adding = std::make_unique<engine::work_thread>(state.name + " sum", state.threads,
                                                         std::function<bool()>(),
                                                         end_with_thread(*self, state.name));
  return {};
}

}  // namespace troupe::actors
