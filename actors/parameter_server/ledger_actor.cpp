#include "actors/parameter_server/ledger_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "actors/errors.hpp"
#include "engine/parameter_server/ledger_core.hpp"

namespace troupe::actors {
namespace {

using engine::worker_id;
using join_answer = caf::typed_response_promise<joined>;

constexpr std::chrono::minutes shard_deadline{10};

struct ledger_state {
  std::vector<shard_actor> shards;
  std::vector<shard_entry> directory;
  std::size_t unconnected = 0;
  std::optional<engine::ledger_core> core;
  std::optional<error> failure;  // a shard is gone or would not be connected
  std::vector<std::pair<join_server, join_answer>> early;  // before the shards are connected
  std::map<worker_id, join_answer> joining;
  std::map<caf::actor_addr, worker_id> present;
};

using self_pointer = ledger_actor::stateful_pointer<ledger_state>;

void perform(self_pointer self, const engine::ledger_effects& effects);

void give_up(self_pointer self, const error& why) {
  auto& state = self->state;
  if (!state.failure) state.failure = why;
  for (auto& [order, answer] : std::exchange(state.early, {})) answer.deliver(to_caf(why));
  for (auto& [worker, answer] : std::exchange(state.joining, {})) answer.deliver(to_caf(why));
}

void admit(self_pointer self, worker_id worker) {
  for (const auto& shard : self->state.shards) {
    self->request(shard, shard_deadline, admit_worker{worker})
        .then([self, worker](const done&) { perform(self, self->state.core->admitted(worker)); },
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

void perform(self_pointer self, const engine::ledger_effects& effects) {
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
        answer.mapped().deliver(joined{worker, state.directory});
    }
  }
}

void join(self_pointer self, const join_server& order, join_answer answer) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { answer.deliver(to_caf(why)); };
  if (state.failure) return refuse(*state.failure);
  if (!order.presence) return refuse({errc::bad_config, "a worker without a presence cannot join"});
  if (state.unconnected > 0) return void(state.early.emplace_back(order, std::move(answer)));
  engine::ledger_effects effects;
  const auto worker = state.core->join(order.rank, effects);
  if (!worker) return refuse(worker.error());
  state.joining.emplace(*worker, std::move(answer));
  const auto presence = caf::actor_cast<caf::actor>(order.presence);
  state.present.emplace(presence.address(), *worker);
  self->monitor(presence);
  perform(self, effects);
}

void connect(self_pointer self, const ledger_parts& given) {
  auto& state = self->state;
  for (std::uint32_t i = 0; i < state.shards.size(); ++i) {
    const auto& shard = state.shards[i];
    state.directory.push_back({caf::actor_cast<caf::strong_actor_ptr>(shard), {}});
    self->monitor(shard);
    const connect_shard order{i, caf::actor_cast<caf::strong_actor_ptr>(self), given.mode,
                              given.staleness};
    self->request(shard, shard_deadline, order)
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

void on_down(self_pointer self, const caf::down_msg& down) {
  auto& state = self->state;
  if (const auto worker = state.present.extract(down.source))
    return perform(self, state.core->leave(worker.mapped()));
  for (std::size_t i = 0; i < state.shards.size(); ++i) {
    if (state.shards[i].address() != down.source) continue;
    const auto why = down.reason ? from_caf(down.reason).text : "it has ended";
    give_up(self, {errc::peer_lost, "shard " + std::to_string(i) + " is gone: " + why});
  }
}

caf::result<joined> on_join(self_pointer self, const join_server& order) {
  auto answer = self->make_response_promise<joined>();
  join(self, order, answer);
  return answer;
}

done on_leave(self_pointer self, const leave_server& order) {
  perform(self, self->state.core->leave(order.worker));
  std::erase_if(self->state.present, [&](const auto& each) { return each.second == order.worker; });
  return {};
}

ledger_report on_read(const engine::ledger_core& core) {
  const auto& [applied, refused, discarded] = core.totals();
  return {core.version(), core.members(), applied, refused, discarded};
}

ledger_actor::behavior_type ledger_behavior(self_pointer self,
                                            const std::shared_ptr<ledger_parts>& given) {
  auto& state = self->state;
  state.shards = given->shards;
  state.unconnected = state.shards.size();
  state.core.emplace(engine::server_rules{.mode = given->mode,
                                          .staleness = given->staleness,
                                          .shards = static_cast<std::uint32_t>(state.shards.size()),
                                          .expected_workers = given->expected_workers});
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  connect(self, *given);
  return {
      [self](const join_server& order) { return on_join(self, order); },
      [self](const leave_server& order) { return on_leave(self, order); },
      [self](const staged_push& what) {
        const auto fault = what.fault.empty() ? std::optional<error>()
                                              : std::optional<error>({what.code, what.fault});
        perform(self, self->state.core->staged(what.shard, what.what, fault));
      },
      [self](const read_ledger&) { return on_read(*self->state.core); },
  };
}

}  // namespace

ledger_actor spawn_ledger(caf::actor_system& system, ledger_parts parts) {
  return system.spawn(ledger_behavior, std::make_shared<ledger_parts>(std::move(parts)));
}

}  // namespace troupe::actors
