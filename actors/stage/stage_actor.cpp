#include "actors/stage/stage_actor.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/messages/common.hpp"
#include "actors/recovery/failed_work.hpp"
#include "actors/stage/actions.hpp"
#include "actors/stage/connect.hpp"
#include "actors/stage/flow.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/stage/plans.hpp"
#include "actors/stage/replica_end.hpp"
#include "actors/stage/replicas/join.hpp"
#include "actors/stage/stage_replay.hpp"
#include "actors/stage/step_end.hpp"
#include "actors/stage/transfer.hpp"
#include "engine/schedule/plan_text.hpp"

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
  end_step(self, self->state.end.core.actions_done(key));
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

void perform(stage_pointer self, const engine::start_action& what) {
  start_work(self, what);
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

caf::result<stage_done> on_run(stage_pointer self, const run_stage& order) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { return to_caf(error_about(state.name, why)); };
  if (const auto ready = check_ready(state, order); !ready) return refuse(ready.error());
  auto plan = plan_of(state, order);
  if (!plan) return refuse(plan.error());
  auto groups = state.norm.groups_of(order);
  if (!groups) return refuse(groups.error());
  const auto effects =
      state.core.begin({order.step, std::move(*plan), state.modules.front()->options().is_first,
                        state.modules.back()->options().is_last});
  if (!effects) return refuse(effects.error());
  const bool trains = order.kind == engine::step_kind::training;
  if (trains)
    if (const auto begun = state.end.core.begin(order.step, order.number, order.dry_run); !begun)
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

/// Keeps an action's output, if a neighbour waits for it, until the core says to send it.
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
  perform_effects(self, state.core.output_ready(output.step, output.action));
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
  perform_effects(self, self->state.core.action_done(outcome.step, outcome.action));
}

void take_parts(stage_state& state, stage_parts& given) {
  state.name = std::move(given.name);
  state.modules = std::move(given.modules);
  for (const auto& module : state.modules)
    std::ranges::copy(module->parameters(), std::back_inserter(state.end.parameters));
  state.end.optimizer = std::move(given.optimizer);
  state.end.accumulate = given.accumulate;
  state.end.clip_value = given.clip_value;
  state.end.repeatable = std::move(given.repeatable);
  if (given.begun) state.replay.begun = std::move(given.begun);
  state.doing = std::move(given.doing);
  state.summing = std::move(given.summing);
  state.threads = given.threads;
  state.streams = state.modules.front()->options().streams;
  state.libraries = std::move(given.libraries);
  state.memory = std::move(given.memory);
  state.incarnation = given.incarnation;
}

void start_threads(stage_pointer self) {
  auto& state = self->state;
  const auto failed = end_with_thread(*self, state.name);
  if (!state.streams->is_cpu())
    for (const auto& [thread, what] :
         {std::pair(&state.leaving, " out"), std::pair(&state.arriving, " in")})
      *thread = std::make_unique<engine::work_thread>(state.name + what, 1, std::function<bool()>(),
                                                      failed);
  state.work = std::make_unique<engine::work_thread>(
      state.name, state.threads,
      [modules = modules_of(state), doing = state.doing] {
        engine::activity_scope scope(*doing, {.kind = engine::work_kind::weight_gradient_ahead});
        const bool did_some =
            std::ranges::any_of(modules, [](auto* module) { return module->work_ahead(); });
        if (!did_some) scope.withdraw();
        return did_some;
      },
      failed);
}

void set_handlers(stage_pointer self) {
  say_last_words(*self, self->state.name, [self](const error& why) { give_up(self, why); });
  self->set_down_handler([self](const caf::down_msg& down) {
    self->state.edges.lose(down.source);
    on_replica_down(self, down.source);
  });
  // Of what it sent: a message that a limit of the link keeps here.
  self->set_error_handler([self](const caf::error& why) { fail_all(self, from_caf(why)); });
}

/// A message's handler.
template <class Message, class Answer>
auto handler(stage_pointer self, Answer (*how)(stage_pointer, const Message&)) {
  return [self, how](const Message& what) { return how(self, what); };
}

stage_actor::behavior_type stage_behavior(stage_pointer self,
                                          const std::shared_ptr<stage_parts>& given) {
  take_parts(self->state, *given);
  set_handlers(self);
  start_threads(self);
  const guarding guarded(self, self->state.name);
  return {
      handler(self, offer_sum),
      handler(self, on_invite_replicas),
      guarded(on_connect),
      guarded(on_announce_plan),
      guarded(on_run),
      handler(self, on_activation),
      handler(self, on_target),
      handler(self, on_gradient),
      handler(self, on_announced_tensor),
      handler(self, on_awaited_tensor),
      handler(self, on_tensor_moved),
      handler(self, on_credit),
      handler(self, on_output_ready),
      handler(self, on_work_done),
      handler(self, on_losses_known),
      handler(self, on_gradients_ready),
      handler(self, on_step_undone),
      handler(self, on_tied_gradient),
      handler(self, on_replica_gradients),
      handler(self, on_replica_statistics),
      handler(self, on_replica_norm),
      handler(self, on_norm_given),
      handler(self, on_replica_parameters),
      handler(self, on_gradient_final),
      handler(self, on_replicas_added),
      handler(self, on_replicas_gathered),
      guarded(on_load),
      guarded(on_read),
      guarded(on_load_files),
      handler(self, on_read_outputs),
      [self](const load_state& from) {
        self->state.versions.updates.was_written = true;
        return self->delegate(self->state.end.optimizer, from);
      },
      [self](const read_state& order) { return self->delegate(self->state.end.optimizer, order); },
      handler(self, on_read_dry_run),
      handler(self, on_take_version),
      guarded(on_adopt_version),
      guarded(on_write_slice),
      handler(self, on_replace_neighbour),
      handler(self, on_replace_feeder),
      handler(self, on_resume_edges),
      handler(self, on_state_shown),
      handler(self, on_buffers_copied),
  };
}

}  // namespace

void perform_effects(stage_pointer self, const result<engine::stage_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects)
    std::visit([self](const auto& each) { perform(self, each); }, effect);
  if (self->state.core.is_idle()) self->state.work->open_gap();
}

void finish_step(stage_pointer self, const step_key& key) {
  self->state.norm.core.step_over(key);
  const auto& order = self->state.steps.at(key).order;
  if (!order.dry_run && self->state.end.core.is_between_updates())
    store_version_of(self, order.number, version_origin::step);
  answer(self, key);
  perform_effects(self, self->state.core.update_done(key));
}

stage_actor spawn_stage(caf::actor_system& system, stage_parts parts) {
  return system.spawn(stage_behavior, std::make_shared<stage_parts>(std::move(parts)));
}

}  // namespace troupe::actors
