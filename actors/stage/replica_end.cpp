#include "actors/stage/replica_end.hpp"

#include <ATen/core/grad_mode.h>

#include <chrono>
#include <exception>
#include <utility>
#include <variant>

#include "actors/stage/step_end.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/collective/tree.hpp"

namespace troupe::actors {
namespace {

std::vector<at::Tensor> to_send(const engine::step_gradients& gradients) {
  std::vector<at::Tensor> all;
  all.reserve(gradients.size());
  for (const auto& each : gradients) all.push_back(each.value_or(at::Tensor()));
  return all;
}

void perform(stage_pointer self, const engine::send_parts& what) {
  auto& end = self->state.end;
  const auto own = end.replicas.core.rank();
  for (std::uint32_t rank = 0; rank < end.replicas.core.ranks(); ++rank)
    if (rank != own)
      self->send(end.replicas.stage_of(rank),
                 replica_gradients{what.key, own, false,
                                   to_send(end.replicas.part_of(end.gradients, rank)),
                                   end.statistics});
}

void perform(stage_pointer self, const engine::add_parts& what) {
  auto& state = self->state;
  post_work(state,
            {.kind = engine::work_kind::gradient_sum,
             .step = state.steps.at(what.key).order.number},
            [parts = state.end.replicas.take_parts(what.key), key = what.key,
             to = caf::actor_cast<stage_actor>(self)]() mutable {
              const auto begin = std::chrono::steady_clock::now();
              replicas_added message{.step = key};
              try {
                const at::NoGradGuard no_grad;
                message.sums = engine::tree_sum(std::move(parts), engine::add_each);
              } catch (const std::exception& problem) {
                message.failure =
                    "summing the replicas' gradients failed: " + engine::reason_of(problem);
              }
              message.busy_s =
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
              caf::anon_send(to, std::move(message));
            });
}

void perform(stage_pointer self, const engine::send_sum& what) {
  auto& replicas = self->state.end.replicas;
  const auto own = replicas.core.rank();
  for (std::uint32_t rank = 0; rank < replicas.core.ranks(); ++rank)
    if (rank != own)
      self->send(replicas.stage_of(rank),
                 replica_gradients{what.key, own, true, to_send(replicas.own_sum(what.key))});
}

void perform(stage_pointer self, const engine::all_reduced& what) {
  auto& end = self->state.end;
  auto [gradients, statistics] = end.replicas.take(what.key);
  end.gradients = std::move(gradients);
  end.all_statistics = std::move(statistics);
  end_step(self, end.core.reduced(what.key));
}

void follow(stage_pointer self, const result<engine::all_reduce_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects)
    std::visit([self](const auto& each) { perform(self, each); }, effect);
}

}  // namespace

void sum_over_replicas(stage_pointer self, const engine::step_key& key) {
  auto& end = self->state.end;
  end.replicas.keep_own(key, end.gradients, end.statistics);
  follow(self, end.replicas.core.begin(key));
}

void on_replica_gradients(stage_pointer self, const replica_gradients& from) {
  auto& replicas = self->state.end.replicas;
  if (const auto fits = replicas.check(from); !fits) return fail_all(self, fits.error());
  const auto effects = from.summed ? replicas.core.sum_arrived(from.step, from.from)
                                   : replicas.core.parts_arrived(from.step, from.from);
  if (effects) replicas.keep(from);
  follow(self, effects);
}

void on_replicas_added(stage_pointer self, const replicas_added& what) {
  auto& state = self->state;
  const auto found = state.steps.find(what.step);
  if (found == state.steps.end()) return;  // failed meanwhile
  found->second.report.busy_s += what.busy_s;
  if (what.failure) return fail_all(self, {errc::handler_failed, *what.failure});
  state.end.replicas.keep_own_sum(what.step, what.sums);
  follow(self, state.end.replicas.core.own_added(what.step));
}

}  // namespace troupe::actors
