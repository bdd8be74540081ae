#include "actors/stage/state/stage_state.hpp"

namespace troupe::actors {

module_list modules_of(const stage_state& state) {
  module_list all;
  for (const auto& module : state.modules) all.push_back(module.get());
  return all;
}

void post_work(const stage_state& state, const engine::work_item& what,
               std::function<void()> task) {
  state.doing->give();
  state.work->post([doing = state.doing, streams = state.streams, what, task = std::move(task)] {
    doing->take();
    const auto on_device = streams->computing();
    const engine::activity_scope scope(*doing, what);
    task();
  });
}

void to_host(tied_gradient& message) {
  if (message.value) message.value = engine::to_host(*message.value, message.made);
}

void to_host(replica_gradients& message) {
  message.gradients = engine::to_host(message.gradients, message.made);
}

void to_host(replica_statistics& message) {
  for (auto& chunk : message.statistics) chunk.values = engine::to_host(chunk.values, message.made);
}

void to_host(replica_parameters& message) {
  message.values = engine::to_host(message.values, message.made);
}

double loss_scale_of(const stage_state& state, const announced_step& step) {
  return step.order.loss_scale > 0 ? step.order.loss_scale : state.end.loss_scale;
}

bool has_departed(stage_pointer self) {
  return self->state.replay.departed.has_departed(self->current_sender());
}

}  // namespace troupe::actors
