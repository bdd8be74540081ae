#include "actors/stage/steps/step_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "actors/base/errors.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/recovery/failed_work.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/stage/steps/effects.hpp"
#include "actors/stage/steps/plans.hpp"
#include "actors/stage/steps/stage_replay.hpp"
#include "actors/stage/work/actions.hpp"
#include "actors/stage/work/end_effects.hpp"
#include "actors/stage/work/replica_end.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/step/stage_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

using engine::step_key;

void answer(stage_pointer self, const step_key& key) {
  auto step = self->state.steps.extract(key);
  if (!step) return;
  auto& [order, report, promise, groups] = step.mapped();
  report.step = key;
  report.share.peak_memory_bytes = peak_memory_bytes();
  report.share.peak_device_bytes = engine::peak_bytes_on(self->state.streams->device()).value_or(0);
  for (const auto& module : self->state.modules)
    report.share.peak_context_bytes += module->take_peak_context_bytes();
  promise.deliver(report);
}

void actions_done(stage_pointer self, const step_key& key) {
  const auto& order = self->state.steps.at(key).order;
  if (order.kind != engine::step_kind::training) return answer(self, key);
  end_step(self, self->state.end.core->actions_done(key));
}

void perform(stage_pointer self, const engine::start_action& what) {
  start_work(self, what.key, what.what);
}

void perform(stage_pointer self, const engine::step_finished& what) {
  if (!fetch_losses(self, what.key)) actions_done(self, what.key);
}

/// Whether the stage can begin a step as it is. Errors: bad_config, bad_data, and what it has lost.
result<void> check_ready(const stage_state& state, const run_stage& order) {
  if (state.before.empty()) return fail(errc::bad_config, "a run before its neighbours are known");
  // Nobody else may hear of it: the steps before may have been answered.
  if (const auto& why = state.versions.problem; why && order.kind == engine::step_kind::training)
    return tl::unexpected(*why);
  if (const auto& lost = state.edges.failure()) return tl::unexpected(*lost);
  if (!state.loading.empty())
    return fail(errc::bad_data, "a run before all of its weights were loaded");
  return {};
}

/// For what is done again when another stage is lost.
void log_begun(stage_state& state, const run_stage& order) {
  if (!state.replay.logs) return;
  if (order.kind != engine::step_kind::training)
    state.replay.window.begun_evaluation(order.step);
  else if (!order.dry_run)
    state.replay.window.begun(order.number, order.step);
}

void begin_modules(stage_pointer self, const run_stage& order) {
  const auto& state = self->state;
  state.work->post(
      [modules = modules_of(state), key = order.step, takers = takers_of(self, order.step),
       room = room_of_gradients(self),
       terms = engine::step_terms{.number = order.number,
                                  .reversible = order.dry_run || state.end.may_leave_out,
                                  .first_microbatch = order.first_microbatch,
                                  .shares = order.shares,
                                  .keeps_statistics = state.end.replicas.is_needed()}] {
        for (std::size_t chunk = 0; chunk < modules.size(); ++chunk)
          modules[chunk]->begin(key, terms, takers[chunk], room);
      });
}

}  // namespace

stage_state::stage_state() : core(std::make_unique<engine::stage_core>()) {
  end.core = std::make_unique<engine::step_end_core>();
}

stage_state::~stage_state() {
  norm.give_up({errc::cancelled, name + " has ended"});
}

void reset_order(stage_state& state, const connect_stage& to) {
  // Replicas whose actions wait for each other take them in one order: that of the plan.
  const auto how = to.replicas.synced_norm ? engine::execution::planned : engine::execution::ready;
  *state.core = engine::stage_core(to.credits, how, to.logs);
  state.plans.clear();
}

caf::result<stage_done> on_run(stage_pointer self, const run_stage& order) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { return to_caf(error_about(state.name, why)); };
  if (const auto ready = check_ready(state, order); !ready) return refuse(ready.error());
  auto plan = plan_of(state, order);
  if (!plan) return refuse(plan.error());
  auto groups = state.norm.groups_of(order);
  if (!groups) return refuse(groups.error());
  const auto effects =
      state.core->begin({order.step, std::move(*plan), state.modules.front()->options().is_first,
                         state.modules.back()->options().is_last});
  if (!effects) return refuse(effects.error());
  const bool trains = order.kind == engine::step_kind::training;
  if (trains)
    if (const auto begun = state.end.core->begin(order.step, order.number, order.dry_run); !begun)
      return to_caf(begun.error());
  forget_evaluations(self, order.done_before);
  log_begun(state, order);
  state.predicted.clear();
  auto promise = self->make_response_promise<stage_done>();
  announced_step announced{order, {}, promise, std::move(*groups)};
  announced.report.losses.resize(std::max<std::size_t>(1, order.shares.size()));
  state.steps.emplace(order.step, std::move(announced));
  if (trains) begin_modules(self, order);
  perform_effects(self, effects);
  return promise;
}

void on_output_ready(stage_pointer self, const output_ready& output) {
  auto& state = self->state;
  if (!state.steps.contains(output.step)) return;  // failed meanwhile
  const auto& [kind, microbatch, chunk] = output.action;
  const auto on =
      kind == engine::action_kind::forward ? engine::edge::input : engine::edge::gradient;
  const auto& receiver = on == engine::edge::input ? state.after[chunk] : state.before[chunk];
  if (!receiver.stage && on == engine::edge::input && output.tensor.defined())
    state.predicted.push_back({std::to_string(microbatch.value), output.tensor});
  if (receiver.stage)
    state.outputs[{microbatch_key{output.step, microbatch, chunk}, on}] =
        std::make_shared<kept_output>(output.tensor, output.made);
  perform_effects(self, state.core->output_ready(output.step, output.action));
}

void on_work_done(stage_pointer self, const work_done& outcome) {
  const auto found = self->state.steps.find(outcome.step);
  if (found == self->state.steps.end()) return;  // failed meanwhile
  if (outcome.failure) {
    const auto chunks = static_cast<std::uint32_t>(self->state.modules.size());
    return fail_all(self, failure_of_work(engine::to_string(outcome.action, chunks),
                                          found->second.order, *outcome.failure));
  }
  if (!add_losses(self, found->second, outcome.losses)) return;
  found->second.report.share.busy_s += outcome.busy_s;
  perform_effects(self, self->state.core->action_done(outcome.step, outcome.action));
}

void on_losses_known(stage_pointer self, const losses_known& from) {
  const auto found = self->state.steps.find(from.step);
  if (found == self->state.steps.end()) return;  // failed meanwhile
  if (from.failure)
    return fail_all(self,
                    failure_of_work("reading the losses", found->second.order, *from.failure));
  if (!add_losses(self, found->second, from.losses)) return;
  actions_done(self, from.step);
}

void give_up(stage_pointer self, const error& why) {
  auto steps = std::exchange(self->state.steps, {});
  self->state.inbox.clear();
  self->state.outputs.clear();
  self->state.end.core->give_up();
  self->state.end.gradients.clear();
  self->state.end.tied.clear();
  self->state.end.replicas.give_up();
  self->state.norm.give_up(why);
  for (const auto& [each, how] : std::exchange(self->state.versions.waiting, {}))
    each(tl::unexpected(why));
  if (auto slice = std::exchange(self->state.versions.slice, std::nullopt))
    slice->answer.deliver(to_caf(why));
  if (steps.empty()) log::error(why.text);
  for (auto& [key, step] : steps) step.answer.deliver(to_caf(why));
}

void fail_all(stage_pointer self, const error& why) {
  give_up(self, error_about(self->state.name, why));
}

void perform_effects(stage_pointer self, const result<engine::stage_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects)
    std::visit([self](const auto& each) { perform(self, each); }, effect);
  if (self->state.core->is_idle()) self->state.work->open_gap();
}

void finish_step(stage_pointer self, const step_key& key) {
  self->state.norm.core.step_over(key);
  const auto& order = self->state.steps.at(key).order;
  if (!order.dry_run && self->state.end.core->is_between_updates())
    store_version_of(self, order.number, version_origin::step);
  answer(self, key);
  perform_effects(self, self->state.core->update_done(key));
}

}  // namespace troupe::actors
