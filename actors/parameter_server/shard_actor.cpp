#include "actors/parameter_server/shard_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "actors/errors.hpp"
#include "actors/parameter_server/batch_pieces.hpp"
#include "engine/parameter_server/shard_core.hpp"
#include "engine/stage/work_thread.hpp"

namespace troupe::actors {
namespace {

using engine::push_id;

/// Who waits for the fate of a push, and what its answer is to bring.
struct push_waiter {
  caf::typed_response_promise<pushed> answer;
  bool pull = false;
  std::optional<param_version> newer_than;
  batch_limits most;
};

/// An answer whose values are being read.
struct unanswered_pull {
  caf::typed_response_promise<pulled> answer;
  engine::worker_id worker;
  batch_limits most;
};
struct unanswered_push {
  caf::typed_response_promise<pushed> answer;
  engine::worker_id worker;
  batch_limits most;
  param_version applied;
};

struct shard_state {
  std::string name;
  std::unique_ptr<parameter_store> store;  // its tensors are the work thread's
  std::optional<engine::shard_core> core;  // once connected
  std::uint32_t index = 0;
  ledger_actor ledger;
  std::optional<error> lost;  // why the ledger is gone
  std::map<push_id, tensor_batch> parts;
  incoming_parts incoming;
  unfetched_values unfetched;
  std::map<push_id, std::vector<push_waiter>> waiters;
  std::map<std::uint64_t, std::variant<unanswered_pull, unanswered_push>> reading;  // by ticket
  std::uint64_t last_ticket = 0;
  std::vector<fresh_batch> fresh;             // of the update that is being settled
  std::unique_ptr<engine::work_thread> work;  // last: its tasks use the store
};

using self_pointer = shard_actor::stateful_pointer<shard_state>;

error named(const shard_state& state, const error& why) {
  return {why.code, state.name + ": " + why.text};
}

/// Answers with the values, or as many as one message holds of them.
void answer_values(shard_state& state, unanswered_pull& to, param_version version,
                   const tensor_batch& values) {
  const bool is_member = state.core && state.core->has_member(to.worker);
  if (is_member || fits(values, to.most.frame))
    to.answer.deliver(
        state.unfetched.begin(to.worker, version, values, to.most, state.store->directory()));
  else
    to.answer.deliver(to_caf(named(
        state, {errc::not_admitted, "values of more than one message are for members alone"})));
}

void answer_values(shard_state& state, unanswered_push& to, param_version version,
                   const tensor_batch& values) {
  auto first = state.unfetched.begin(to.worker, version, values, to.most, state.store->directory());
  to.answer.deliver(pushed{to.applied, version, std::move(first.values), first.more});
}

/// Has values read, after the updates under way, for an answer.
void read_for(self_pointer self, std::variant<unanswered_pull, unanswered_push> answer,
              std::vector<std::uint32_t> wanted, std::optional<param_version> newer_than) {
  auto& state = self->state;
  const auto ticket = ++state.last_ticket;
  state.reading.emplace(ticket, std::move(answer));
  state.work->post([store = state.store.get(), ticket, wanted = std::move(wanted), newer_than,
                    to = caf::actor_cast<shard_actor>(self)] {
    values_ready ready{ticket, store->version(), {}, {}};
    if (auto values = store->read(wanted, newer_than))
      ready.values = std::move(*values);
    else
      ready.failure = values.error();
    caf::anon_send(to, std::move(ready));
  });
}

void report(self_pointer self, const engine::report_staged& what) {
  self->send(self->state.ledger,
             staged_push{self->state.index, what.what, what.fault ? what.fault->code : errc{},
                         what.fault ? what.fault->text : ""});
}

/// Hands the parts of an update to the work thread, which then reads what their pushers wait for.
void start(self_pointer self, const engine::start_update& what) {
  auto& state = self->state;
  std::vector<tensor_batch> parts;
  std::vector<std::optional<param_version>> wishes;
  for (const auto& each : what.update.pushes) {
    parts.push_back(std::move(state.parts.extract(each.push).mapped()));
    for (const auto& waiter : state.waiters[each.push]) {
      if (waiter.pull && std::ranges::find(wishes, waiter.newer_than) == wishes.end())
        wishes.push_back(waiter.newer_than);
    }
  }
  state.work->post([store = state.store.get(), parts = std::move(parts), wishes = std::move(wishes),
                    to = caf::actor_cast<shard_actor>(self)]() mutable {
    shard_updated outcome;
    auto updated = store->update(parts);
    parts.clear();
    for (const auto& wish : wishes) {
      auto values = updated ? store->read({}, wish) : result<tensor_batch>();
      if (!values) updated = tl::unexpected(values.error());
      if (updated) outcome.fresh.push_back({wish, store->version(), std::move(*values)});
    }
    if (!updated) outcome.failure = updated.error();
    caf::anon_send(to, std::move(outcome));
  });
}

void settle(self_pointer self, const engine::settle_push& what) {
  auto& state = self->state;
  auto waiters = state.waiters.extract(what.push);
  if (!waiters) return;
  for (auto& waiter : waiters.mapped()) {
    if (!what.outcome) {
      waiter.answer.deliver(to_caf(named(state, what.outcome.error())));
      continue;
    }
    if (!waiter.pull) {
      waiter.answer.deliver(pushed{*what.outcome, *what.outcome, {}});
      continue;
    }
    unanswered_push waiting{waiter.answer, what.push.worker, waiter.most, *what.outcome};
    const auto ready = std::ranges::find(state.fresh, waiter.newer_than, &fresh_batch::newer_than);
    if (ready != state.fresh.end())
      answer_values(state, waiting, ready->version, ready->values);
    else
      read_for(self, std::move(waiting), {}, waiter.newer_than);
  }
}

void perform(self_pointer self, const engine::shard_effects& effects) {
  for (const auto& effect : effects) {
    if (const auto* staged = std::get_if<engine::report_staged>(&effect))
      report(self, *staged);
    else if (const auto* update = std::get_if<engine::start_update>(&effect))
      start(self, *update);
    else if (const auto* settled = std::get_if<engine::settle_push>(&effect))
      settle(self, *settled);
    else
      self->state.parts.erase(std::get<engine::forget_part>(effect).push);
  }
}

/// Nothing that waits can be answered any more.
void fail_all(self_pointer self, const error& why) {
  auto& state = self->state;
  for (auto& [push, waiters] : std::exchange(state.waiters, {}))
    for (auto& waiter : waiters) waiter.answer.deliver(to_caf(why));
  state.parts.clear();
}

void obey(self_pointer self, const result<engine::shard_effects>& effects) {
  if (effects) return perform(self, *effects);
  const auto why = named(self->state, effects.error());
  fail_all(self, why);
  self->quit(to_caf(why));  // shard and ledger disagree: a bug
}

caf::result<shard_directory> on_connect(self_pointer self, const connect_shard& how) {
  auto& state = self->state;
  if (state.core || !how.ledger)
    return to_caf(named(state, {errc::bad_config, "it takes one ledger, once"}));
  state.index = how.index;
  state.ledger = caf::actor_cast<ledger_actor>(how.ledger);
  state.core.emplace(engine::server_rules{.mode = how.mode, .staleness = how.staleness});
  self->monitor(state.ledger);
  return shard_directory{state.store->directory()};
}

std::optional<error> reason_to_refuse(const shard_state& state) {
  if (state.lost) return named(state, *state.lost);
  if (!state.core) return named(state, {errc::not_admitted, "no ledger has been opened"});
  return std::nullopt;
}

caf::result<pushed> on_push(self_pointer self, const push_gradients& order) {
  auto& state = self->state;
  if (const auto why = reason_to_refuse(state)) return to_caf(*why);
  const auto& push = order.what.push;
  std::optional<whole_part> assembled;
  if (order.piece > 0 || !order.last) {
    if (!state.core->has_member(push.worker))
      return to_caf(named(state, {errc::not_admitted, "a piece of a push of no member"}));
    assembled = state.incoming.add(order, state.store->directory());
    if (!assembled) return pushed{};
  }
  const bool is_broken = assembled && !*assembled;
  const tensor_batch& part = assembled && *assembled ? **assembled : order.gradients;
  const auto good =
      is_broken ? result<void>(tl::unexpected(assembled->error())) : state.store->check(part);
  const auto effects =
      state.core->push(order.what, good ? std::optional<error>() : std::optional(good.error()));
  if (!effects) return to_caf(named(state, effects.error()));
  if (state.core->keeps(push) && !state.parts.contains(push))
    state.parts.emplace(push, good ? part : tensor_batch{});
  auto answer = self->make_response_promise<pushed>();
  state.waiters[push].push_back({answer, order.pull, order.newer_than, order.most});
  perform(self, *effects);
  return answer;
}

caf::result<pulled> on_pull(self_pointer self, const pull_parameters& order) {
  auto& state = self->state;
  if (state.lost) return to_caf(named(state, *state.lost));
  if (state.core && state.core->failure()) return to_caf(named(state, *state.core->failure()));
  if (order.piece > 0) {
    auto part = state.unfetched.next(order.worker, order.piece);
    if (!part) return to_caf(named(state, part.error()));
    return std::move(*part);
  }
  auto answer = self->make_response_promise<pulled>();
  read_for(self, unanswered_pull{answer, order.worker, order.most}, order.wanted, order.newer_than);
  return answer;
}

void on_values(self_pointer self, const values_ready& ready) {
  auto found = self->state.reading.extract(ready.ticket);
  if (!found) return;
  std::visit(
      [&](auto& waiting) {
        if (ready.failure)
          waiting.answer.deliver(to_caf(named(self->state, *ready.failure)));
        else
          answer_values(self->state, waiting, ready.version, ready.values);
      },
      found.mapped());
}

void on_updated(self_pointer self, const shard_updated& outcome) {
  auto& state = self->state;
  state.fresh = outcome.fresh;
  const auto how =
      outcome.failure ? result<void>(tl::unexpected(*outcome.failure)) : result<void>();
  perform(self, state.core->updated(how));
  state.fresh.clear();
}

shard_actor::behavior_type shard_behavior(self_pointer self,
                                          const std::shared_ptr<shard_parts>& given) {
  auto& state = self->state;
  state.name = std::move(given->name);
  state.store = std::move(given->store);
  state.work = std::make_unique<engine::work_thread>(state.name, given->threads);
  self->set_down_handler([self](const caf::down_msg&) {
    self->state.lost = error{errc::peer_lost, "the parameter server's ledger is gone"};
    fail_all(self, named(self->state, *self->state.lost));
  });
  return {
      [self](const connect_shard& how) { return on_connect(self, how); },
      [self](const admit_worker& who) {
        self->state.core->admit(who.worker);
        return done{};
      },
      [self](const expel_worker& who) {
        self->state.incoming.forget(who.worker);
        self->state.unfetched.forget(who.worker);
        perform(self, self->state.core->expel(who.worker));
      },
      [self](const apply_pushes& order) {
        engine::server_update update{order.version, {}};
        for (std::size_t i = 0; i < order.workers.size(); ++i)
          update.pushes.push_back({{order.workers[i], order.sequences.at(i)}, order.bases.at(i)});
        obey(self, self->state.core->apply(update));
      },
      [self](const refuse_push& order) {
        perform(self, self->state.core->refuse(order.push, {order.code, order.text}));
      },
      [self](const push_gradients& order) { return on_push(self, order); },
      [self](const pull_parameters& order) { return on_pull(self, order); },
      [self](const shard_updated& outcome) { on_updated(self, outcome); },
      [self](const values_ready& ready) { on_values(self, ready); },
  };
}

}  // namespace

shard_actor spawn_shard(caf::actor_system& system, shard_parts parts) {
  return system.spawn(shard_behavior, std::make_shared<shard_parts>(std::move(parts)));
}

}  // namespace troupe::actors
