#include "actors/parameter_server/shard_actor.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/shard_reading.hpp"
#include "actors/parameter_server/shard_state.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/parameter_server/shard_core.hpp"
#include "engine/stage/work_thread.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

/// Answers that a shard owes at most for one push, which its worker may repeat.
constexpr std::size_t max_waiters = 16;

/// Whether the message being handled is from the coordinator that the shard is connected to.
result<void> check_coordinator(shard_pointer self, const char* what) {
  const auto& state = self->state;
  if (!state.core)
    return fail(errc::not_admitted, state.name + ": " + what + " came before its coordinator");
  const auto& sender = self->current_sender();
  if (sender && caf::actor_cast<caf::actor_addr>(sender) == state.coordinator.address()) return {};
  return fail(errc::not_admitted,
              state.name + ": " + what + " came from " +
                  (sender ? "actor " + std::to_string(sender->id()) : "nobody") +
                  ", which is not its coordinator");
}

/// Runs a handler of the coordinator's orders. To anybody else a request is answered with why not;
/// an order without an answer is dropped, and said in the log, less and less often.
template <class Body>
caf::result<void> from_coordinator(shard_pointer self, const char* what, const Body& body) {
  const auto allowed = check_coordinator(self, what);
  if (allowed) {
    body();
    return caf::unit;
  }
  if (std::has_single_bit(++self->state.refusals)) log::warning(allowed.error().text);
  if (self->current_mailbox_element()->mid.is_request()) return to_caf(allowed.error());
  return caf::unit;
}

void report(shard_pointer self, const engine::report_staged& what) {
  self->send(self->state.coordinator,
             staged_push{self->state.index, what.what, what.fault ? what.fault->code : errc{},
                         what.fault ? what.fault->text : ""});
}

/// After which versions those who wait for an update's pushes want values; each of them once.
std::vector<std::optional<param_version>> wishes_of(shard_state& state,
                                                    const engine::server_update& update) {
  std::vector<std::optional<param_version>> wishes;
  for (const auto& each : update.pushes)
    for (const auto& waiter : state.waiters[each.push])
      if (waiter.pull && std::ranges::find(wishes, waiter.newer_than) == wishes.end())
        wishes.push_back(waiter.newer_than);
  return wishes;
}

/// Hands the parts of an update to the work thread, which then reads what their pushers wait for.
void start(shard_pointer self, const engine::start_update& what) {
  auto& state = self->state;
  if (state.lost) return;  // and its parts are gone
  std::vector<engine::tensor_batch> parts;
  for (const auto& each : what.update.pushes)
    parts.push_back(std::move(state.parts.extract(each.push).mapped()));
  state.doing->give();
  state.work->post([store = state.store.get(), parts = std::move(parts),
                    wishes = wishes_of(state, what.update), memory = state.memory,
                    doing = state.doing, version = what.update.version.value,
                    to = caf::actor_cast<shard_actor>(self)]() mutable {
    doing->take();
    const engine::activity_scope scope(*doing,
                                       {.kind = engine::work_kind::update, .step = version});
    const lendable_tensors lendable(memory);
    shard_updated outcome;
    auto updated = store->update(parts);
    parts.clear();
    for (const auto& wish : wishes) {
      if (!updated) break;
      // What cannot be read now is tried again for each who waits for it, and refused to those.
      if (auto values = store->read({}, wish))
        outcome.fresh.push_back({wish, store->version(), std::move(*values)});
    }
    if (!updated) outcome.failure = updated.error();
    caf::anon_send(to, std::move(outcome));
  });
}

void settle(shard_pointer self, const engine::settle_push& what) {
  auto& state = self->state;
  auto waiters = state.waiters.extract(what.push);
  if (!waiters) return;
  for (auto& waiter : waiters.mapped()) {
    if (!what.outcome) {
      waiter.answer.deliver(to_caf(named(state, what.outcome.error())));
      continue;
    }
    if (!waiter.pull) {
      waiter.answer.deliver(gradients_pushed{*what.outcome, *what.outcome, {}});
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

void perform(shard_pointer self, const engine::shard_effects& effects) {
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
void fail_all(shard_pointer self, const error& why) {
  auto& state = self->state;
  for (auto& [push, waiters] : std::exchange(state.waiters, {}))
    for (auto& waiter : waiters) waiter.answer.deliver(to_caf(why));
  state.parts.clear();
}

void obey(shard_pointer self, const result<engine::shard_effects>& effects) {
  if (effects) return perform(self, *effects);
  const auto why = named(self->state, effects.error());
  fail_all(self, why);
  self->quit(to_caf(why));  // shard and coordinator disagree: a bug
}

caf::result<shard_directory> on_connect(shard_pointer self, const connect_shard& how) {
  auto& state = self->state;
  if (state.core || !how.coordinator)
    return to_caf(named(state, {errc::bad_config, "it takes one coordinator, once"}));
  const auto& sender = self->current_sender();
  if (!sender ||
      caf::actor_cast<caf::actor_addr>(sender) != caf::actor_cast<caf::actor_addr>(how.coordinator))
    return to_caf(named(state, {errc::not_admitted, "a coordinator connects it itself"}));
  if (how.mode > engine::server_mode::asynchronous)
    return to_caf(named(state, {errc::bad_config, "its coordinator names no mode"}));
  if (how.begin != state.begin)
    return to_caf(named(
        state,
        {errc::bad_config, "its coordinator begins with update " + std::to_string(how.begin.value) +
                               ", and its values with " + std::to_string(state.begin.value)}));
  state.index = how.index;
  state.coordinator = caf::actor_cast<coordinator_actor>(how.coordinator);
  state.core.emplace(
      engine::server_rules{.mode = how.mode, .staleness = how.staleness, .begin = state.begin});
  self->monitor(state.coordinator);
  return shard_directory{state.store->directory()};
}

/// Why a push is not taken. A worker's pushes come from one process.
std::optional<error> reason_to_refuse(shard_pointer self, const engine::push_id& push) {
  const auto& state = self->state;
  if (state.lost) return named(state, *state.lost);
  if (!state.core) return named(state, {errc::not_admitted, "no coordinator has been opened"});
  const auto known = state.pushers.find(push.worker);
  const auto& sender = self->current_sender();
  if (known != state.pushers.end() && (!sender || sender->node() != known->second))
    return named(state,
                 {errc::not_admitted, "a push of worker " + std::to_string(push.worker.value) +
                                          " came from another process than its first"});
  const auto waits = state.waiters.find(push);
  if (waits != state.waiters.end() && waits->second.size() >= max_waiters)
    return named(state, {errc::bad_frame, "push " + std::to_string(push.sequence) + " of worker " +
                                              std::to_string(push.worker.value) +
                                              " was repeated too often"});
  return std::nullopt;
}

caf::result<gradients_pushed> on_push(shard_pointer self, const push_gradients& order) {
  auto& state = self->state;
  const auto& push = order.what.push;
  if (const auto why = reason_to_refuse(self, push)) return to_caf(*why);
  std::optional<whole_part> assembled;
  if (order.piece > 0 || !order.last) {
    if (!state.core->has_member(push.worker))
      return to_caf(named(state, {errc::not_admitted, "a piece of a push of no member"}));
    assembled = state.incoming.add(order, state.store->directory());
    if (!assembled) return gradients_pushed{};
  }
  const bool is_broken = assembled && !*assembled;
  const engine::tensor_batch& part = assembled && *assembled ? **assembled : order.gradients;
  const auto good =
      is_broken ? result<void>(tl::unexpected(assembled->error())) : state.store->check(part);
  const auto effects =
      state.core->push(order.what, good ? std::optional<error>() : std::optional(good.error()));
  if (!effects) return to_caf(named(state, effects.error()));
  if (const auto& sender = self->current_sender())
    state.pushers.try_emplace(push.worker, sender->node());
  if (state.core->keeps(push) && !state.parts.contains(push))
    state.parts.emplace(push, good ? part : engine::tensor_batch{});
  auto answer = self->make_response_promise<gradients_pushed>();
  state.waiters[push].push_back({answer, order.pull, order.newer_than, order.most});
  perform(self, *effects);
  return answer;
}

void on_updated(shard_pointer self, const shard_updated& outcome) {
  auto& state = self->state;
  if (!state.core) return;
  state.fresh = outcome.fresh;
  const auto how =
      outcome.failure ? result<void>(tl::unexpected(*outcome.failure)) : result<void>();
  perform(self, state.core->updated(how));
  state.fresh.clear();
}

void on_apply(shard_pointer self, const apply_pushes& order) {
  if (order.sequences.size() != order.workers.size() || order.bases.size() != order.workers.size())
    return obey(self,
                fail(errc::bad_frame, "an update names " + std::to_string(order.workers.size()) +
                                          " workers, and as many pushes it does not"));
  engine::server_update update{order.version, {}};
  for (std::size_t i = 0; i < order.workers.size(); ++i)
    update.pushes.push_back({{order.workers[i], order.sequences[i]}, order.bases[i]});
  obey(self, self->state.core->apply(update));
}

/// Requests that wait fail with the reason for which the shard ends.
void give_up(shard_pointer self, const error& why) {
  fail_all(self, why);
  for (auto& [ticket, waiting] : std::exchange(self->state.reading, {}))
    std::visit([&](auto& each) { each.answer.deliver(to_caf(why)); }, waiting);
}

caf::result<acknowledged> on_admit(shard_pointer self, const admit_worker& who) {
  if (const auto from = check_coordinator(self, "an admission"); !from) return to_caf(from.error());
  self->state.core->admit(who.worker);
  return acknowledged{};
}

void on_expel(shard_pointer self, const expel_worker& who) {
  auto& state = self->state;
  state.incoming.forget(who.worker);
  state.unfetched.forget(who.worker);
  perform(self, state.core->expel(who.worker));
  state.pushers.erase(who.worker);
}

shard_actor::behavior_type shard_behavior(shard_pointer self,
                                          const std::shared_ptr<shard_parts>& given) {
  auto& state = self->state;
  state.name = std::move(given->name);
  state.store = std::move(given->store);
  state.memory = std::move(given->memory);
  state.begin = state.store->version();
  state.doing = given->doing ? std::move(given->doing) : std::make_shared<engine::activity>();
  say_last_words(*self, state.name, [self](const error& why) { give_up(self, why); });
  state.work = std::make_unique<engine::work_thread>(
      state.name, given->threads, std::function<bool()>(), end_with_thread(*self, state.name));
  self->set_down_handler([self](const caf::down_msg&) {
    self->state.lost = error{errc::peer_lost, "the parameter server's coordinator is gone"};
    fail_all(self, named(self->state, *self->state.lost));
  });
  return {
      [self](const connect_shard& how) { return on_connect(self, how); },
      [self](const admit_worker& who) { return on_admit(self, who); },
      [self](const expel_worker& who) {
        return from_coordinator(self, "an expulsion", [&] { on_expel(self, who); });
      },
      [self](const apply_pushes& order) {
        return from_coordinator(self, "an update", [&] { on_apply(self, order); });
      },
      [self](const refuse_push& order) {
        return from_coordinator(self, "a refusal", [&] {
          perform(self, self->state.core->refuse(order.push, {order.code, order.text}));
        });
      },
      [self](const push_gradients& order) { return on_push(self, order); },
      [self](const pull_parameters& order) { return on_pull(self, order); },
      [self](const shard_updated& outcome) { on_updated(self, outcome); },
      [self](const values_ready& ready) { on_values(self, ready); },
      [self](const read_shard_state& order) { return on_read_state(self, order); },
  };
}

}  // namespace

shard_actor spawn_shard(caf::actor_system& system, shard_parts parts) {
  return system.spawn(shard_behavior, std::make_shared<shard_parts>(std::move(parts)));
}

}  // namespace troupe::actors
