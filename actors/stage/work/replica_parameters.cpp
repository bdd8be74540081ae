#include <ATen/ops/empty_like.h>

#include <exception>
#include <memory>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/stage/replicas/replica_log.hpp"
#include "actors/stage/work/end_effects.hpp"
#include "actors/stage/work/replica_end.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/step/step_end_core.hpp"

namespace troupe::actors {
namespace {

/// All replicas' parameters are here: the optimizer, which alone writes them, takes them over.
void replace_by(stage_pointer self, const engine::step_key& key, engine::step_gradients values) {
  self->request(self->state.end.optimizer, usual_deadlines.update,
                replace_parameters{std::move(values)})
      .then(
          [self, key](const acknowledged&) {
            if (self->state.steps.contains(key)) end_step(self, self->state.end.core->ended(key));
          },
          [self](const caf::error& why) { fail_all(self, from_caf(why)); });
}

void take_parameters(stage_pointer self, const engine::step_key& key, const result<bool>& all) {
  if (!all) return fail_all(self, all.error());
  if (*all) replace_by(self, key, self->state.end.replicas.take_values(key));
}

/// Each replica's parameters go to all, by the port. `all`: by parameter, its owner and its value.
void broadcast_by_port(const std::shared_ptr<engine::collective_port>& port, const stage_actor& to,
                       const std::vector<std::pair<std::uint32_t, at::Tensor>>& all,
                       replicas_gathered message) {
  std::vector<engine::collective_operation> group;
  for (const auto& [owner, value] : all) {
    const bool is_own = owner == port->rank();
    const auto here = is_own ? value : at::empty_like(value);
    group.push_back({.what = engine::collective::broadcast,
                     .from = is_own ? value : at::Tensor(),
                     .to = here,
                     .peer = owner});
    message.values.push_back(is_own ? std::nullopt : std::optional(here));
  }
  port->submit(std::move(group), [to, message = std::move(message)](const auto& how) mutable {
    if (!how) message.failure = how.error();
    caf::anon_send(to, std::move(message));
  });
}

void gather_by_port(stage_pointer self, const engine::step_key& key) {
  const auto& state = self->state;
  std::vector<std::pair<std::uint32_t, at::Tensor>> all;
  for (const auto& each : state.end.parameters) all.emplace_back(0, each.tensor.detach());
  for (const auto& bucket : state.end.replicas.core.buckets())
    for (const auto i : bucket.parameters) all[i].first = bucket.owner;
  state.adding->post([all = std::move(all), key, made = state.streams->mark(), port = state.port,
                      streams = state.streams, connection = state.connection,
                      to = caf::actor_cast<stage_actor>(self)] {
    const auto on_device = streams->copying();
    replicas_gathered message{.step = key, .connection = connection};
    try {
      streams->copies_wait(made);
      broadcast_by_port(port, to, all, message);
    } catch (const std::exception& problem) {
      message.failure = {errc::handler_failed, "gathering the replicas' parameters failed: " +
                                                   engine::reason_of(problem)};
      caf::anon_send(to, std::move(message));
    }
  });
}

}  // namespace

void share_parameters(stage_pointer self, const engine::step_key& key) {
  if (self->state.port) return gather_by_port(self, key);
  send_parameters(self, key);
  take_parameters(self, key, self->state.end.replicas.gather.sent(key));
}

void on_replica_parameters(stage_pointer self, const replica_parameters& from) {
  auto& replicas = self->state.end.replicas;
  if (has_departed(self)) return;
  const bool repeats = replicas.gather.is_repeat(from.step, from.bucket);
  if (!repeats && !self->state.steps.contains(from.step)) return;  // failed meanwhile
  if (const auto fits = replicas.check(from); !fits) return fail_all(self, fits.error());
  const auto all = replicas.gather.arrived(from.step, from.bucket, from.from);
  if (all && !repeats) {
    auto here = from;
    for (auto& each : here.values) each = self->state.streams->take(each, from.made);
    replicas.keep(here);
  }
  take_parameters(self, from.step, all);
}

void on_replicas_gathered(stage_pointer self, const replicas_gathered& what) {
  auto& state = self->state;
  if (what.connection != state.connection || !state.steps.contains(what.step)) return;  // failed
  if (what.failure) return fail_all(self, *what.failure);
  auto values = what.values;
  for (auto& each : values)
    if (each) each = state.streams->take(*each, {});
  replace_by(self, what.step, std::move(values));
}

}  // namespace troupe::actors
