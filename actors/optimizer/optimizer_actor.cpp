#include "actors/optimizer/optimizer_actor.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "actors/errors.hpp"
#include "engine/stage/torch_error.hpp"

namespace troupe::actors {
namespace {

struct optimizer_state {
  std::string name;
  std::vector<at::Tensor> parameters;
  optimizers::optimizer optimizer;
  optimizers::options options;
  optimizers::state slots;
  param_version version;
};

using self_pointer = optimizer_actor::stateful_pointer<optimizer_state>;

result<void> step(optimizer_state& state, const apply_gradients& order) try {
  const at::NoGradGuard no_grad;
  if (order.update != state.version.value + 1)
    return fail(errc::stale, "update " + std::to_string(order.update) + " after update " +
                                 std::to_string(state.version.value));
  auto options = state.options;
  options["lr"] = order.learning_rate;
  return state.optimizer.step(state.parameters, order.gradients, state.slots, options,
                              order.update);
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, engine::reason_of(problem));
}

caf::result<applied> on_apply(self_pointer self, const apply_gradients& order) {
  auto& state = self->state;
  const auto begin = std::chrono::steady_clock::now();
  if (auto stepped = step(state, order); !stepped)
    return to_caf({stepped.error().code, state.name + ": optimizer '" + state.optimizer.name +
                                             "': " + stepped.error().text});
  ++state.version.value;
  const std::chrono::duration<double> busy = std::chrono::steady_clock::now() - begin;
  return applied{state.version, busy.count()};
}

optimizer_actor::behavior_type optimizer_behavior(self_pointer self,
                                                  const std::shared_ptr<optimizer_parts>& given) {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(given->threads);
  auto& state = self->state;
  state.name = std::move(given->name);
  for (auto& parameter : given->parameters) state.parameters.push_back(parameter.tensor);
  state.optimizer = std::move(given->optimizer);
  state.options = std::move(given->options);
  return {[self](const apply_gradients& order) { return on_apply(self, order); }};
}

}  // namespace

optimizer_actor spawn_optimizer(caf::actor_system& system, optimizer_parts parts) {
  return system.spawn<caf::detached>(optimizer_behavior,
                                     std::make_shared<optimizer_parts>(std::move(parts)));
}

}  // namespace troupe::actors
