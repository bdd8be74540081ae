#include "actors/stage/stage_actor.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <iterator>
#include <memory>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/recovery/failed_work.hpp"
#include "actors/stage/actions.hpp"
#include "actors/stage/connect.hpp"
#include "actors/stage/plans.hpp"
#include "actors/stage/replica_end.hpp"
#include "actors/stage/stage_replay.hpp"
#include "actors/stage/state/stage_state.hpp"
#include "actors/stage/step_end.hpp"
#include "actors/stage/transfer.hpp"
#include "actors/stage/versions.hpp"
#include "engine/schedule/plan_text.hpp"

namespace troupe::actors {
namespace {

using engine::action_kind;
using engine::step_key;

std::uint32_t chunks_of(const stage_state& state) {
  return static_cast<std::uint32_t>(state.modules.size());
}

void answer(stage_pointer self, const step_key& key) {
  auto step = self->state.steps.extract(key);
  if (!step) return;
  auto& [order, report, promise, groups] = step.mapped();
  report.step = key;
  report.peak_memory_bytes = peak_memory_bytes();
  report.peak_device_bytes = engine::peak_bytes_on(self->state.streams->device()).value_or(0);
  for (const auto& module : self->state.modules)
    report.peak_context_bytes += module->take_peak_context_bytes();
  promise.deliver(report);
}

/// By the port that leads there; false: none does.
bool send_by_port(stage_pointer self, engine::edge on, const stage_actor& to,
                  const microbatch_key& key, const kept_output& output) {
  auto& state = self->state;
  const auto here = caf::actor_cast<stage_actor>(self);
  const auto announce = [here, to](const announced_tensor& what) { caf::send_as(here, to, what); };
  const auto told = [here, on, key, connection = state.connection](const error& why) {
    caf::anon_send(here, tensor_moved{on, key, {}, why, connection});
  };
  return state.edges.send(on, to, key, output.tensor, output.made, *state.streams, announce, told);
}

/// An output for another stage: an activation or an input gradient.
template <class Message>
void send_kept(stage_pointer self, const stage_actor& to, const microbatch_key& key,
               const std::shared_ptr<kept_output>& output) {
  if (!output->left && !is_elsewhere(self, to))
    return self->send(to, Message{key, output->tensor, output->made});
  output->left = true;
  self->state.leaving->post([from = caf::actor_cast<stage_actor>(self), to, key, output] {
    output->tensor = engine::to_host(output->tensor, output->made);
    output->made.reset();
    caf::send_as(from, to, Message{key, output->tensor, {}});
  });
}

/// Hands an action's output to the neighbour that waits for it.
void send(stage_pointer self, const engine::send_output& what) {
  auto& state = self->state;
  const auto output =
      state.outputs.find({microbatch_key{what.key, what.microbatch, what.chunk}, what.on});
  if (output == state.outputs.end()) return;  // its step was failed meanwhile
  const bool is_gradient = what.on == engine::edge::gradient;
  const auto& [stage, chunk] = (is_gradient ? state.before : state.after)[what.chunk];
  const microbatch_key key{what.key, what.microbatch, chunk};
  if (!send_by_port(self, what.on, stage, key, *output->second)) {
    if (is_gradient)
      send_kept<gradient>(self, stage, key, output->second);
    else
      send_kept<activation>(self, stage, key, output->second);
  }
  // Else it may have to be sent again.
  if (!state.replay.window.contains(what.key)) state.outputs.erase(output);
}

void grant(stage_pointer self, const engine::grant_credit& what) {
  const auto& state = self->state;
  const auto& from =
      what.from == engine::edge::gradient ? state.after[what.chunk] : state.before[what.chunk];
  const bool is_fed = what.from == engine::edge::target || !from.stage;
  const credit granted{what.from, {what.key, what.microbatch, is_fed ? 0 : from.chunk}};
  if (is_fed)
    self->send(state.feeder, granted);
  else
    self->send(from.stage, granted);
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
  for (const auto& each : from.losses)
    if (const auto added = add_loss(self, found->second, each); !added)
      return fail_all(self, added.error());
  actions_done(self, from.step);
}

void perform_effects(stage_pointer self, const result<engine::stage_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects) {
    if (const auto* action = std::get_if<engine::start_action>(&effect)) {
      start_work(self, *action);
    } else if (const auto* output = std::get_if<engine::send_output>(&effect)) {
      send(self, *output);
    } else if (const auto* used = std::get_if<engine::grant_credit>(&effect)) {
      grant(self, *used);
    } else if (const auto& key = std::get<engine::step_finished>(effect).key;
               !fetch_losses(self, key)) {
      actions_done(self, key);
    }
  }
  if (self->state.core.is_idle()) self->state.work->open_gap();
}

caf::result<stage_done> on_run(stage_pointer self, const run_stage& order) {
  auto& state = self->state;
  if (state.before.empty())
    return to_caf({errc::bad_config, state.name + ": a run before its neighbours are known"});
  // Nobody else may hear of it: the steps before may have been answered.
  if (const auto& why = state.versions.problem; why && order.kind == engine::step_kind::training)
    return to_caf({why->code, state.name + ": " + why->text});
  auto plan = plan_of(state, order);
  if (!plan) return to_caf({plan.error().code, state.name + ": " + plan.error().text});
  auto groups = state.norm.groups_of(order);
  if (!groups) return to_caf({groups.error().code, state.name + ": " + groups.error().text});
  if (const auto& lost = state.edges.failure())
    return to_caf({lost->code, state.name + ": " + lost->text});
  if (!state.loading.empty())
    return to_caf({errc::bad_data, state.name + ": a run before all of its weights were loaded"});
  auto effects =
      state.core.begin({order.step, std::move(*plan), state.modules.front()->options().is_first,
                        state.modules.back()->options().is_last});
  if (!effects) return to_caf({effects.error().code, state.name + ": " + effects.error().text});
  const bool trains = order.kind == engine::step_kind::training;
  if (auto begun =
          trains ? state.end.core.begin(order.step, order.number, order.dry_run) : result<void>();
      !begun)
    return to_caf(begun.error());
  forget_evaluations(self, order.done_before);
  if (state.replay.logs && !trains) state.replay.window.begun_evaluation(order.step);
  if (state.replay.logs && trains && !order.dry_run)
    state.replay.window.begun(order.number, order.step);
  state.predicted.clear();
  auto promise = self->make_response_promise<stage_done>();
  announced_step announced{order, {}, promise, std::move(*groups)};
  announced.report.losses.resize(std::max<std::size_t>(1, order.shares.size()));
  state.steps.emplace(order.step, std::move(announced));
  if (trains)
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
  perform_effects(self, effects);
  return promise;
}

/// Keeps an action's output, if a neighbour waits for it, until the core says to send it.
void on_output_ready(stage_pointer self, const output_ready& output) {
  auto& state = self->state;
  if (!state.steps.contains(output.step)) return;  // failed meanwhile
  const auto& [kind, microbatch, chunk] = output.action;
  const auto on = kind == action_kind::forward ? engine::edge::input : engine::edge::gradient;
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
  if (outcome.failure)
    return fail_all(self, failure_of_work(engine::to_string(outcome.action, chunks_of(self->state)),
                                          found->second.order, *outcome.failure));
  for (const auto& each : outcome.losses)
    if (const auto added = add_loss(self, found->second, each); !added)
      return fail_all(self, added.error());
  found->second.report.busy_s += outcome.busy_s;
  perform_effects(self, self->state.core.action_done(outcome.step, outcome.action));
}

/// On a device, a tensor of the host is copied there by a thread of its own, while the work thread
/// is at what came before.
arrived_tensor arrive(const stage_state& state, const at::Tensor& tensor,
                      const engine::ready_event& made) {
  if (!state.arriving || !tensor.defined() || !tensor.is_cpu()) return {tensor, made};
  // What it throws is the action's.
  const auto copy = std::make_shared<std::packaged_task<engine::uploaded_tensor()>>(
      [tensor, streams = state.streams] { return streams->upload(tensor); });
  state.arriving->post([copy] { (*copy)(); });
  return {tensor, made, copy->get_future().share()};
}

void on_activation(stage_pointer self, const activation& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::input, in.key))
    self->state.inbox[in.key].input = arrive(self->state, in.tensor, in.made);
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core.input_arrived(step, microbatch, chunk));
}

void on_target(stage_pointer self, const target& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::target, in.key))
    self->state.inbox[in.key].labels = arrive(self->state, in.labels, {});
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core.target_arrived(step, microbatch, chunk));
}

void on_gradient(stage_pointer self, const gradient& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::gradient, in.key))
    self->state.inbox[in.key].gradient = arrive(self->state, in.tensor, in.made);
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core.gradient_arrived(step, microbatch, chunk));
}

void on_credit(stage_pointer self, const credit& in) {
  if (has_departed(self)) return;
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core.credit_arrived(in.on, step, microbatch, chunk));
}

/// Fails the steps under way. What else was under way by the same port fails too, and no step that
/// it could concern is left.
void lose_tensor(stage_pointer self, const error& why) {
  if (self->state.edges.failure()) return;
  self->state.edges.note_failure(why);
  fail_all(self, why);
}

/// A tensor comes by a port: it is received whatever becomes of its step, as the next one comes
/// behind it.
void on_announced_tensor(stage_pointer self, const announced_tensor& what) {
  auto& state = self->state;
  auto ended = [to = caf::actor_cast<stage_actor>(self), key = what.key,
                connection = state.connection](engine::edge on, const result<at::Tensor>& how) {
    tensor_moved message{.on = on, .key = key, .connection = connection};
    if (how)
      message.tensor = *how;
    else
      message.failure = how.error();
    caf::anon_send(to, std::move(message));
  };
  const auto reply = [here = caf::actor_cast<stage_actor>(self)](const stage_actor& to,
                                                                 const awaited_tensor& awaited) {
    caf::send_as(here, to, awaited);
  };
  if (const auto begun = state.edges.receive(what, *state.streams, reply, std::move(ended)); !begun)
    lose_tensor(self, begun.error());
}

void on_awaited_tensor(stage_pointer self, const awaited_tensor& what) {
  auto& state = self->state;
  if (const auto begun = state.edges.send_awaited(what, *state.streams); !begun)
    lose_tensor(self, begun.error());
}

void on_tensor_moved(stage_pointer self, const tensor_moved& what) {
  if (what.connection != self->state.connection) return;
  if (what.failure) return lose_tensor(self, *what.failure);
  if (what.on == engine::edge::gradient) return on_gradient(self, {what.key, what.tensor});
  on_activation(self, {what.key, what.tensor});
}

acknowledged on_resume_edges(stage_pointer self, const resume_edges&) {
  perform_effects(self, self->state.core.resume());
  return {};
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
  state.collectives = std::move(given.collectives);
  state.memory = std::move(given.memory);
  state.incarnation = given.incarnation;
}

void start_threads(stage_pointer self) {
  auto& state = self->state;
  const auto failed = [name = state.name, here = self->address()](const std::exception& problem) {
    end_because(here, name, problem);
  };
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
  end_when_thrown(*self, self->state.name, [self](const error& why) { give_up(self, why); });
  self->set_exit_handler([self](const caf::exit_msg& exit) {
    if (is_own(exit.reason)) give_up(self, from_caf(exit.reason));
    self->quit(exit.reason);
  });
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

/// A request's handler: what it throws is its answer, and does not end the stage.
template <class Message, class Answer>
auto guarded(stage_pointer self, caf::result<Answer> (*how)(stage_pointer, const Message&)) {
  return [self, how](const Message& what) {
    return answering(self->state.name, [&] { return how(self, what); });
  };
}

stage_actor::behavior_type stage_behavior(stage_pointer self,
                                          const std::shared_ptr<stage_parts>& given) {
  take_parts(self->state, *given);
  set_handlers(self);
  start_threads(self);
  return {
      [self](const ask_sum_offer&) { return offer_sum(self); },
      handler(self, on_invite_replicas),
      guarded(self, on_connect),
      guarded(self, on_announce_plan),
      guarded(self, on_run),
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
      guarded(self, on_load),
      guarded(self, on_read),
      guarded(self, on_load_files),
      handler(self, on_read_outputs),
      [self](const load_state& from) {
        self->state.versions.updates.was_written = true;
        return self->delegate(self->state.end.optimizer, from);
      },
      [self](const read_state& order) { return self->delegate(self->state.end.optimizer, order); },
      handler(self, on_read_dry_run),
      handler(self, on_take_version),
      guarded(self, on_adopt_version),
      guarded(self, on_write_slice),
      handler(self, on_replace_neighbour),
      handler(self, on_replace_feeder),
      handler(self, on_resume_edges),
      handler(self, on_state_shown),
      handler(self, on_buffers_copied),
  };
}

}  // namespace

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
