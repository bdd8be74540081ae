#include "actors/stage/work/replica_end.hpp"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <memory>
#include <utility>
#include <variant>

#include "actors/stage/replicas/replica_log.hpp"
#include "actors/stage/work/end_effects.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/collective/packing.hpp"
#include "engine/collective/tree.hpp"
#include "engine/step/step_end_core.hpp"

namespace troupe::actors {
namespace {

std::vector<at::Tensor> to_send(engine::step_gradients gradients) {
  std::vector<at::Tensor> all;
  all.reserve(gradients.size());
  for (auto& each : gradients) all.push_back(std::move(each).value_or(at::Tensor()));
  return all;
}

/// Sums over replicas are made on the stream of copies, so that the backward goes on meanwhile.
void take_all(stage_pointer self, std::vector<at::Tensor>& tensors,
              const engine::ready_event& made) {
  for (auto& each : tensors) each = self->state.streams->take_for_copies(each, made);
}

/// Where gradients and sums lie that replicas in other processes read; null: anywhere.
std::shared_ptr<messages::shared_memory> memory_to_lend(stage_pointer self) {
  const auto& state = self->state;
  const auto& replicas = state.end.replicas;
  if (!state.streams->is_cpu() || state.port) return nullptr;
  for (std::uint32_t rank = 0; rank < replicas.core.ranks(); ++rank)
    if (rank != replicas.core.rank() && replicas.stage_of(rank).node() != self->node())
      return state.memory;
  return nullptr;
}

void perform(stage_pointer self, const engine::send_part& what) {
  auto& replicas = self->state.end.replicas;
  send_to_replicas(self, {replica_gradients{what.key,
                                            static_cast<std::uint32_t>(what.bucket),
                                            replicas.core.rank(),
                                            false,
                                            to_send(replicas.take_own(what.key, what.bucket)),
                                            {}},
                          replicas.core.buckets()[what.bucket].owner, self->state.streams->mark()});
}

/// Adds up a bucket on the thread for that, on the stream of copies. `add` gets the message without
/// its sums and whom to send it to, and sends it, perhaps later, unless it throws.
template <class Add>
void post_addition(stage_pointer self, const engine::step_key& key, std::size_t bucket, Add add) {
  auto& state = self->state;
  const engine::work_item item{.kind = engine::work_kind::gradient_sum,
                               .step = state.steps.at(key).order.number,
                               .size = state.end.replicas.core.buckets()[bucket].bytes};
  replicas_added message{
      .step = key, .bucket = static_cast<std::uint32_t>(bucket), .connection = state.connection};
  state.summing->give();
  state.adding->post([add = std::move(add), item, message, doing = state.summing,
                      streams = state.streams, to = caf::actor_cast<stage_actor>(self)]() mutable {
    doing->take();
    const engine::activity_scope scope(*doing, item);
    const auto on_device = streams->copying();
    try {
      add(message, to);
    } catch (const std::exception& problem) {
      message.failure = error{errc::handler_failed, "summing the replicas' gradients failed: " +
                                                        engine::reason_of(problem)};
      caf::anon_send(to, std::move(message));
    }
  });
}

void perform(stage_pointer self, const engine::add_parts& what) {
  auto& state = self->state;
  auto parts = state.end.replicas.take_parts(what.key, what.bucket);
  const auto made = state.streams->mark();  // the own one; the others are there for copies
  for (auto& part : parts)
    for (auto& each : part)
      if (each) each = state.streams->take_for_copies(*each, made);
  post_addition(self, what.key, what.bucket,
                [parts = std::move(parts), memory = memory_to_lend(self)](
                    replicas_added message, const stage_actor& to) mutable {
                  const at::NoGradGuard no_grad;
                  const lendable_tensors lendable(memory);
                  message.sums = engine::tree_sum(std::move(parts), engine::add_each);
                  caf::anon_send(to, std::move(message));
                });
}

/// Packs the own gradients of a bucket on the stream of copies, and has the port sum them: for all
/// ranks, or for the bucket's owner alone.
void sum_by_port(const std::shared_ptr<engine::collective_port>& port, const stage_actor& to,
                 const engine::step_gradients& own, const std::vector<at::Tensor>& like,
                 std::optional<std::uint32_t> owner, replicas_added message) {
  auto packed = engine::pack_to_sum(own, like, port->ranks());
  const bool is_for_us = !owner || *owner == port->rank();
  std::vector<engine::collective_operation> group;
  for (const auto& flat : packed.flat)
    group.push_back({.what = owner ? engine::collective::reduce : engine::collective::all_reduce,
                     .from = flat,
                     .to = is_for_us ? flat : at::Tensor(),
                     .peer = owner.value_or(0)});
  message.sums.resize(like.size());
  if (is_for_us) message.sums = std::move(packed.views);
  port->submit(std::move(group), [to, message = std::move(message)](const auto& how) mutable {
    if (!how) message.failure = how.error();
    caf::anon_send(to, std::move(message));
  });
}

void perform(stage_pointer self, const engine::sum_bucket& what) {
  auto& state = self->state;
  auto& replicas = state.end.replicas;
  const auto& order = state.steps.at(what.key).order;  // a dry run's sums are its outcome
  const bool everywhere = order.dry_run || replicas.is_known_everywhere(what.bucket);
  const auto owner =
      everywhere ? std::nullopt : std::optional(replicas.core.buckets()[what.bucket].owner);
  post_addition(self, what.key, what.bucket,
                [own = replicas.take_own(what.key, what.bucket), like = replicas.like(what.bucket),
                 made = state.streams->mark(), owner, port = state.port, streams = state.streams](
                    const replicas_added& message, const stage_actor& to) mutable {
                  for (auto& each : own)
                    if (each) each = streams->take_for_copies(*each, made);
                  sum_by_port(port, to, own, like, owner, message);
                });
}

/// The sum of one of its own buckets for the others, in a step that is under way.
sent_to_replicas own_sum(stage_pointer self, const engine::step_key& key, std::size_t bucket) {
  const auto& replicas = self->state.end.replicas;
  const bool all = self->state.steps.at(key).order.dry_run;  // they are its outcome
  return {replica_gradients{key,
                            static_cast<std::uint32_t>(bucket),
                            replicas.core.rank(),
                            true,
                            to_send(replicas.sums_of(key, bucket, all)),
                            {}},
          {},
          self->state.streams->mark_copies()};
}

void perform(stage_pointer self, const engine::send_sum& what) {
  const auto* const before = remembered_sum(self->state, what.key, what.bucket);
  auto sum = before ? *before : own_sum(self, what.key, what.bucket);
  sum.to = what.to;
  send_to_replicas(self, std::move(sum));
}

void perform(stage_pointer self, const engine::send_rest& what) {
  const auto& end = self->state.end;
  send_to_replicas(
      self,
      {replica_statistics{
           what.key, end.replicas.core.rank(), end.statistics, {}, end.replicas.without(what.key)},
       {},
       self->state.streams->mark()});
}

void perform(stage_pointer self, const engine::all_reduced& what) {
  auto& end = self->state.end;
  auto [gradients, statistics] = end.replicas.take(what.key);
  const auto& streams = *self->state.streams;
  const auto made = streams.mark_copies();
  for (auto& each : gradients)
    if (each) each = streams.take(*each, made);
  for (auto& chunk : statistics)
    for (auto& replica : chunk)
      for (auto& each : replica.values) each = streams.take(each, made);
  end.gradients = std::move(gradients);
  end.all_statistics = std::move(statistics);
  end_step(self, end.core->reduced(what.key));
}

/// Whether there is anything to carry out; fails the steps under way where a core has failed.
template <class Effects>
bool holds(stage_pointer self, const result<Effects>& effects) {
  if (effects) return true;
  // What another replica sent before it heard that a third is gone: no step is left to fail.
  const bool is_late = effects.error().code == errc::peer_lost && self->state.steps.empty();
  if (!is_late) fail_all(self, effects.error());
  return false;
}

void follow(stage_pointer self, const result<engine::all_reduce_effects>& effects) {
  if (!holds(self, effects)) return;
  for (const auto& effect : *effects)
    std::visit([self](const auto& each) { perform(self, each); }, effect);
}

/// The same of what synchronized batch norms sum; `send`: the own part to others.
template <class Send>
void follow(stage_pointer self, const result<engine::norm_effects>& effects, const Send& send) {
  if (!holds(self, effects)) return;
  for (const auto& effect : *effects)
    if (const auto* const part = std::get_if<engine::send_norm_part>(&effect))
      send(*part);
    else
      self->state.norm.answer(std::get<engine::norm_summed>(effect).sum);
}

}  // namespace

std::vector<engine::gradient_taker> takers_of(stage_pointer self, const engine::step_key& key) {
  const auto& state = self->state;
  std::vector<engine::gradient_taker> takers(state.modules.size());
  if (state.end.replicas.core.ranks() < 2) return takers;
  std::size_t first = 0;
  for (std::size_t chunk = 0; chunk < takers.size(); ++chunk) {
    takers[chunk] = [key, first, to = caf::actor_cast<stage_actor>(self)](
                        std::size_t parameter, std::optional<at::Tensor> gradient) {
      caf::anon_send(to, gradient_final{key, first + parameter, std::move(gradient)});
    };
    first += state.modules[chunk]->parameters().size();
  }
  return takers;
}

engine::gradient_room room_of_gradients(stage_pointer self) {
  if (self->state.end.replicas.core.ranks() < 2) return {};
  auto memory = memory_to_lend(self);
  if (!memory) return {};
  return [memory = std::move(memory)] { return std::make_shared<lendable_tensors>(memory); };
}

void on_gradient_final(stage_pointer self, const gradient_final& what) {
  auto& state = self->state;
  if (!state.steps.contains(what.step)) return;  // failed meanwhile
  auto& replicas = state.end.replicas;
  if (const auto bucket = replicas.keep_own(what.step, what.parameter, what.value))
    follow(self, replicas.core.ready(what.step, *bucket));
}

void sum_over_replicas(stage_pointer self, const engine::step_key& key) {
  auto& end = self->state.end;
  end.replicas.keep_rest(key, end.gradients, end.statistics);
  follow(self, end.replicas.core.complete(key));
}

void on_replica_gradients(stage_pointer self, const replica_gradients& from) {
  auto& replicas = self->state.end.replicas;
  if (has_departed(self)) return;
  const bool repeats = replicas.core.is_repeat(from.step, from.bucket, from.from);
  if (from.summed && !repeats && !self->state.steps.contains(from.step))
    return;  // failed meanwhile
  if (const auto fits = replicas.check(from); !fits) return fail_all(self, fits.error());
  const auto effects = from.summed ? replicas.core.sum_arrived(from.step, from.bucket, from.from)
                                   : replicas.core.part_arrived(from.step, from.bucket, from.from);
  auto here = from;
  if (effects && !repeats) take_all(self, here.gradients, from.made);
  if (effects && !repeats) replicas.keep(here);
  follow(self, effects);
}

void on_replica_statistics(stage_pointer self, const replica_statistics& from) {
  auto& replicas = self->state.end.replicas;
  if (has_departed(self)) return;
  const bool repeats = replicas.core.is_repeat(from.step, replicas.core.rest_of_step(), from.from);
  if (const auto fits = replicas.check(from); !fits) return fail_all(self, fits.error());
  const auto effects = replicas.core.rest_arrived(from.step, from.from);
  auto here = from;
  if (effects && !repeats)
    for (auto& chunk : here.statistics) take_all(self, chunk.values, from.made);
  if (effects && !repeats) replicas.keep(here);
  follow(self, effects);
}

void on_replicas_added(stage_pointer self, const replicas_added& what) {
  auto& state = self->state;
  if (what.connection != state.connection || !state.steps.contains(what.step)) return;  // failed
  if (what.failure) return fail_all(self, *what.failure);
  auto& replicas = state.end.replicas;
  replicas.keep_own_sum(what.step, what.bucket, what.sums);
  if (state.port) return follow(self, replicas.core.summed(what.step, what.bucket));
  if (state.replay.window.contains(what.step))
    remember(state, own_sum(self, what.step, what.bucket));
  follow(self, replicas.core.own_added(what.step, what.bucket));
}

void on_norm_given(stage_pointer self, const norm_given& what) {
  auto& state = self->state;
  const auto step = state.steps.find(what.at.step);
  if (what.connection != state.connection || step == state.steps.end()) return;  // failed
  const auto takers = step->second.groups->of.ranks_of(what.at.group);
  const auto effects = state.norm.core.given(what.at, what.what, what.part, takers);
  follow(self, effects, [&](const engine::send_norm_part& to) {
    const replica_norm message{what.at, state.end.replicas.core.rank(), what.what,
                               to_tensor(what.part)};
    for (const auto rank : to.to) self->send(state.end.replicas.stage_of(rank), message);
  });
}

void on_replica_norm(stage_pointer self, const replica_norm& from) {
  auto part = part_of(from);
  if (!part) return fail_all(self, part.error());
  follow(self, self->state.norm.core.arrived(from.at, from.from, from.what, std::move(*part)),
         [](const engine::send_norm_part&) {});
}

void on_replica_down(stage_pointer self, const caf::actor_addr& whose) {
  if (self->state.replay.logs) return;  // another one takes its place, or all stages go back
  auto& replicas = self->state.end.replicas;
  for (std::uint32_t rank = 0; rank < replicas.core.ranks(); ++rank) {
    if (rank == replicas.core.rank() || replicas.stage_of(rank).address() != whose) continue;
    // The library of the port does not notice every death by itself.
    if (self->state.port)
      self->state.port->lose(
          {errc::peer_lost, "replica " + std::to_string(rank) + " of it is gone"});
    // Of a step one of them waits at most: parameters are gathered after the reduction.
    const auto norms = self->state.norm.core.lost(rank);
    const auto summing = replicas.core.lost(rank);
    const auto gathering = replicas.gather.lost(rank);
    if (!norms) return fail_all(self, norms.error());
    if (!summing) return fail_all(self, summing.error());
    if (!gathering) return fail_all(self, gathering.error());
  }
}

}  // namespace troupe::actors
