#include "actors/stage/steps/flow.hpp"

#include <future>
#include <memory>
#include <utility>

#include "actors/stage/steps/effects.hpp"
#include "engine/step/stage_core.hpp"

namespace troupe::actors {
namespace {

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

/// Whether what arrives was used, and comes once more from a stage that does a step again.
bool is_repeat(stage_pointer self, engine::edge on, const microbatch_key& key) {
  return self->state.core->is_repeat(on, key.step, key.microbatch, key.chunk);
}

/// Fails the steps under way. What else was under way by the same port fails too, and no step that
/// it could concern is left.
void lose_tensor(stage_pointer self, const error& why) {
  if (self->state.edges.failure()) return;
  self->state.edges.note_failure(why);
  fail_all(self, why);
}

}  // namespace

void perform(stage_pointer self, const engine::send_output& what) {
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

void perform(stage_pointer self, const engine::grant_credit& what) {
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

void on_activation(stage_pointer self, const activation& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::input, in.key))
    self->state.inbox[in.key].input = arrive(self->state, in.tensor, in.made);
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core->input_arrived(step, microbatch, chunk));
}

void on_target(stage_pointer self, const target& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::target, in.key))
    self->state.inbox[in.key].labels = arrive(self->state, in.labels, {});
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core->target_arrived(step, microbatch, chunk));
}

void on_gradient(stage_pointer self, const gradient& in) {
  if (has_departed(self)) return;
  if (!is_repeat(self, engine::edge::gradient, in.key))
    self->state.inbox[in.key].gradient = arrive(self->state, in.tensor, in.made);
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core->gradient_arrived(step, microbatch, chunk));
}

void on_credit(stage_pointer self, const credit& in) {
  if (has_departed(self)) return;
  const auto& [step, microbatch, chunk] = in.key;
  perform_effects(self, self->state.core->credit_arrived(in.on, step, microbatch, chunk));
}

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
  perform_effects(self, self->state.core->resume());
  return {};
}

}  // namespace troupe::actors
