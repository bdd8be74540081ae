#include "actors/parameter_server/coordinator_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "engine/parameter_server/coordinator_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using engine::worker_id;
using join_answer = caf::typed_response_promise<server_joined>;

/// Workers that may wait for the shards to be connected.
constexpr std::size_t max_early = engine::coordinator_core::max_members;

struct coordinator_state {
  std::vector<shard_actor> shards;
  std::vector<shard_entry> directory;
  std::size_t unconnected = 0;
  std::optional<engine::coordinator_core> core;
  std::optional<error> failure;  // a shard is gone or would not be connected
  std::vector<std::pair<join_server, join_answer>> early;  // before the shards are connected
  std::map<worker_id, join_answer> joining;
  std::map<caf::actor_addr, worker_id> present;
  std::uint64_t refusals = 0;  // of reports that were not their shard's
  /// Reports that wait until members are as few as that.
  std::vector<std::pair<std::uint64_t, caf::typed_response_promise<coordinator_report>>> reports;
};

using coordinator_pointer = coordinator_actor::stateful_pointer<coordinator_state>;

void perform(coordinator_pointer self, const engine::coordinator_effects& effects);

void give_up(coordinator_pointer self, const error& why) {
  auto& state = self->state;
  if (!state.failure) state.failure = why;
  for (auto& [order, answer] : std::exchange(state.early, {})) answer.deliver(to_caf(why));
  for (auto& [worker, answer] : std::exchange(state.joining, {})) answer.deliver(to_caf(why));
}

coordinator_report report_of(const engine::coordinator_core& core) {
  const auto& [applied, refused, discarded] = core.totals();
  return {core.version(), core.members(), applied, refused, discarded};
}

/// Answers the reports that waited for members to leave.
void answer_reports(coordinator_pointer self) {
  auto& state = self->state;
  const auto due = std::ranges::partition(
      state.reports, [&](const auto& each) { return state.core->members() > each.first; });
  for (auto& each : due) each.second.deliver(report_of(*state.core));
  state.reports.erase(due.begin(), due.end());
}

void admit(coordinator_pointer self, worker_id worker) {
  for (const auto& shard : self->state.shards) {
    self->request(shard, usual_deadlines.update, admit_worker{worker})
        .then([self,
               worker](const acknowledged&) { perform(self, self->state.core->admitted(worker)); },
              [self](const caf::error& why) { give_up(self, from_caf(why)); });
  }
}

apply_pushes order_of(const engine::server_update& update) {
  apply_pushes order{update.version, {}, {}, {}};
  for (const auto& [push, base] : update.pushes) {
    order.workers.push_back(push.worker);
    order.sequences.push_back(push.sequence);
    order.bases.push_back(base);
  }
  return order;
}

void perform(coordinator_pointer self, const engine::coordinator_effects& effects) {
  auto& state = self->state;
  const auto tell = [&](const auto& what) {
    for (const auto& shard : state.shards) self->send(shard, what);
  };
  for (const auto& effect : effects) {
    if (const auto* in = std::get_if<engine::admit_member>(&effect)) {
      admit(self, in->worker);
    } else if (const auto* out = std::get_if<engine::expel_member>(&effect)) {
      tell(expel_worker{out->worker});
    } else if (const auto* update = std::get_if<engine::server_update>(&effect)) {
      tell(order_of(*update));
    } else if (const auto* refused = std::get_if<engine::refuse_part>(&effect)) {
      tell(refuse_push{refused->push, refused->why.code, refused->why.text});
    } else {
      const auto worker = std::get<engine::welcome_member>(effect).worker;
      if (auto answer = state.joining.extract(worker))
        answer.mapped().deliver(server_joined{worker, state.directory});
    }
  }
}

void join(coordinator_pointer self, const join_server& order, join_answer answer) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { answer.deliver(to_caf(why)); };
  if (state.failure) return refuse(*state.failure);
  if (!order.presence) return refuse({errc::bad_config, "a worker without a presence cannot join"});
  if (state.unconnected > 0 && state.early.size() >= max_early)
    return refuse({errc::bad_config, "too many workers wait for the parameter server"});
  if (state.unconnected > 0) return void(state.early.emplace_back(order, std::move(answer)));
  const auto presence = caf::actor_cast<caf::actor>(order.presence);
  if (state.present.contains(presence.address()))
    return refuse({errc::bad_config, "a worker that is here already cannot join again"});
  engine::coordinator_effects effects;
  const auto worker = state.core->join(order.rank, effects);
  if (!worker) return refuse(worker.error());
  state.joining.emplace(*worker, std::move(answer));
  state.present.emplace(presence.address(), *worker);
  self->monitor(presence);
  perform(self, effects);
}

void connect(coordinator_pointer self, const coordinator_parts& given) {
  auto& state = self->state;
  for (std::uint32_t i = 0; i < state.shards.size(); ++i) {
    const auto& shard = state.shards[i];
    state.directory.push_back({caf::actor_cast<caf::strong_actor_ptr>(shard), {}});
    self->monitor(shard);
    const connect_shard order{i, caf::actor_cast<caf::strong_actor_ptr>(self), given.mode,
                              given.staleness, given.begin};
    self->request(shard, usual_deadlines.update, order)
        .then(
            [self, i](const shard_directory& of) {
              self->state.directory[i].parameters = of.parameters;
              if (--self->state.unconnected > 0) return;
              for (auto& [early, answer] : std::exchange(self->state.early, {}))
                join(self, early, std::move(answer));
            },
            [self](const caf::error& why) { give_up(self, from_caf(why)); });
  }
}

/// A worker is a member no more.
void leave(coordinator_pointer self, worker_id worker) {
  auto& state = self->state;
  perform(self, state.core->leave(worker));
  if (auto answer = state.joining.extract(worker))
    answer.mapped().deliver(to_caf({errc::cancelled, "the worker left before it was admitted"}));
  answer_reports(self);
}

void on_down(coordinator_pointer self, const caf::down_msg& down) {
  auto& state = self->state;
  if (const auto worker = state.present.extract(down.source)) return leave(self, worker.mapped());
  for (std::size_t i = 0; i < state.shards.size(); ++i) {
    if (state.shards[i].address() != down.source) continue;
    const auto why = down.reason ? from_caf(down.reason).text : "it has ended";
    give_up(self, {errc::peer_lost, "shard " + std::to_string(i) + " is gone: " + why});
  }
}

caf::result<server_joined> on_join(coordinator_pointer self, const join_server& order) {
  auto answer = self->make_response_promise<server_joined>();
  join(self, order, answer);
  return answer;
}

/// Only a worker's own process takes it out.
caf::result<acknowledged> on_leave(coordinator_pointer self, const leave_server& order) {
  auto& present = self->state.present;
  const auto found =
      std::ranges::find_if(present, [&](const auto& each) { return each.second == order.worker; });
  if (found == present.end()) return acknowledged{};
  const auto& sender = self->current_sender();
  if (!sender || sender->node() != found->first.node())
    return to_caf({errc::not_admitted, "worker " + std::to_string(order.worker.value) +
                                           " is a member from another process"});
  self->demonitor(found->first);
  present.erase(found);
  leave(self, order.worker);
  return acknowledged{};
}

caf::result<coordinator_report> on_read(coordinator_pointer self, const read_coordinator& order) {
  auto& state = self->state;
  if (state.core->members() <= order.members_at_most) return report_of(*state.core);
  if (state.reports.size() >= max_early)
    return to_caf({errc::bad_frame, "too many reports of the coordinator are waited for"});
  auto answer = self->make_response_promise<coordinator_report>();
  state.reports.emplace_back(order.members_at_most, answer);
  return answer;
}

/// A shard speaks for itself only.
void on_staged(coordinator_pointer self, const staged_push& what) {
  auto& state = self->state;
  const auto& sender = self->current_sender();
  if (what.shard >= state.shards.size() || !sender ||
      caf::actor_cast<caf::actor_addr>(sender) != state.shards[what.shard].address()) {
    if (std::has_single_bit(++state.refusals))
      log::warning("the parameter server's coordinator refused a report about shard " +
                   std::to_string(what.shard) + " that was not that shard's");
    return;
  }
  const auto fault =
      what.fault.empty() ? std::optional<error>() : std::optional<error>({what.code, what.fault});
  perform(self, state.core->staged(what.shard, what.what, fault));
}

coordinator_actor::behavior_type coordinator_behavior(
    coordinator_pointer self, const std::shared_ptr<coordinator_parts>& given) {
  auto& state = self->state;
  state.shards = given->shards;
  state.unconnected = state.shards.size();
  state.core.emplace(engine::server_rules{.mode = given->mode,
                                          .staleness = given->staleness,
                                          .shards = static_cast<std::uint32_t>(state.shards.size()),
                                          .expected_workers = given->expected_workers,
                                          .begin = given->begin});
  end_when_thrown(*self, "the parameter server's coordinator",
                  [self](const error& why) { give_up(self, why); });
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  connect(self, *given);
  return {
      [self](const join_server& order) { return on_join(self, order); },
      [self](const leave_server& order) { return on_leave(self, order); },
      [self](const staged_push& what) { on_staged(self, what); },
      [self](const read_coordinator& order) { return on_read(self, order); },
  };
}

}  // namespace

coordinator_actor spawn_coordinator(caf::actor_system& system, coordinator_parts parts) {
  auto made =
      system.spawn(coordinator_behavior, std::make_shared<coordinator_parts>(std::move(parts)));
  declare_cheap(caf::actor_cast<caf::strong_actor_ptr>(made));  // it keeps tables, and no tensors
  return made;
}

}  // namespace troupe::actors
