#include "actors/stage/stage_actor.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/stage/connect.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/stage/replicas/join.hpp"
#include "actors/stage/steps/flow.hpp"
#include "actors/stage/steps/plans.hpp"
#include "actors/stage/steps/stage_replay.hpp"
#include "actors/stage/steps/step_order.hpp"
#include "actors/stage/transfer.hpp"
#include "actors/stage/work/replica_end.hpp"
#include "actors/stage/work/step_end.hpp"

namespace troupe::actors {
namespace {

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

stage_actor spawn_stage(caf::actor_system& system, stage_parts parts) {
  return system.spawn(stage_behavior, std::make_shared<stage_parts>(std::move(parts)));
}

}  // namespace troupe::actors
