#include "actors/stage/losses.hpp"

#include <cmath>
#include <exception>
#include <string>

#include "actors/stage/run_order.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::actors {

bool fetch_losses(stage_pointer self, const engine::step_key& key) {
  auto& state = self->state;
  const auto& last = *state.modules.back();
  if (state.streams->is_cpu() || !last.options().is_last) return false;
  post_work(state, {.kind = engine::work_kind::step_end, .step = state.steps.at(key).order.number},
            [module = state.modules.back().get(), key, to = caf::actor_cast<stage_actor>(self)] {
              losses_known message{.step = key};
              try {
                message.losses = module->take_losses(key);
              } catch (const std::exception& problem) {
                message.failure = "reading the losses failed: " + engine::reason_of(problem);
              }
              caf::anon_send(to, std::move(message));
            });
  return true;
}

result<void> add_loss(stage_pointer self, announced_step& step, const engine::microbatch_loss& of) {
  step.report.losses.at(logical_of(step.order, of.microbatch)) += of.loss;
  step.report.correct += of.correct;
  if (std::isfinite(of.loss) || step.order.kind != engine::step_kind::training) return {};
  return self->state.end.core.loss_not_finite(
      step.order.step, "the loss of micro-batch " + std::to_string(of.microbatch.value) + " is " +
                           (std::isnan(of.loss) ? "NaN" : "infinite"));
}

}  // namespace troupe::actors
