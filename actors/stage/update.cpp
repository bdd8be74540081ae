#include "actors/stage/update.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "actors/errors.hpp"
#include "actors/messages/judge.hpp"
#include "actors/messages/optimizer.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/stage/unscale.hpp"
#include "engine/verify/reference.hpp"
#include "messages/base/log.hpp"
#include "optimizers/options.hpp"

namespace troupe::actors {
namespace {

using engine::step_key;

/// How long an update may take before its stage gives up on its optimizer.
constexpr std::chrono::minutes update_deadline{10};

/// How long a stage waits for all others to have their gradients.
constexpr std::chrono::minutes verdict_deadline{60};

/// What every context of the step must have given back by now, or the step fails: memory that
/// stays behind would grow from step to step.
result<void> check_contexts(const stage_state& state, const step_key& key) {
  for (const auto& module : state.modules) {
    const bool settled = module->is_settled();  // before the count, which may be of before that
    if (const auto bytes = module->contexts().bytes(key); bytes > 0 && settled)
      return fail(errc::handler_failed, "the contexts of " + engine::to_string(key) +
                                            " still hold " + std::to_string(bytes) +
                                            " bytes at its end");
  }
  return {};
}

/// Frees gradients from the loss scale, and looks through them. Empty: all are finite.
std::string free_of_scale(const std::vector<engine::named_tensor>& parameters,
                          engine::step_gradients& gradients, double scale) {
  if (scale == 1) return engine::first_not_finite(parameters, gradients);
  if (engine::unscale(gradients, scale)) return "";
  return engine::first_not_finite(parameters, gradients) + " at loss scale " +
         optimizers::to_text(scale);
}

/// Computes gradients on the work thread; where they are settled, they are what the optimizer gets.
template <class Compute>
void post_gradients(stage_pointer self, const step_key& key, bool settled, Compute compute) {
  const auto step = self->state.steps.find(key);
  if (step == self->state.steps.end()) return;  // failed meanwhile
  const engine::work_item item{.kind = engine::work_kind::gradient_sum,
                               .step = step->second.order.update};
  post_work(self->state, item,
            [modules = modules_of(self->state), parameters = self->state.update.parameters, key,
             settled, scale = step->second.report.loss_scale, compute = std::move(compute),
             to = caf::actor_cast<stage_actor>(self)]() mutable {
              const auto begin = std::chrono::steady_clock::now();
              gradients_ready message{.step = key, .gradients = {}, .settled = settled};
              try {
                message.gradients = compute(modules, parameters);
                if (settled) message.bad = free_of_scale(parameters, message.gradients, scale);
              } catch (const std::exception& problem) {
                message.failure = "summing the gradients failed: " + engine::reason_of(problem);
              }
              message.busy_s =
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
              caf::anon_send(to, std::move(message));
            });
}

/// Adds what other stages have of shared weights, once all of it is there.
void settle_ties(stage_pointer self, const step_key& key) {
  auto& state = self->state;
  if (!state.update.settling[key].complete(state.update.ties)) return;
  post_gradients(self, key, true,
                 [settling = state.update.settling[key].take()](const module_list&,
                                                                const auto& parameters) mutable {
                   return std::move(settling).settle(parameters);
                 });
}

void share_ties(stage_pointer self, const gradients_ready& own) {
  auto& state = self->state;
  const auto& parameters = state.update.parameters;
  for (const auto& tie : state.update.ties) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].name == tie.parameter)
        self->send(caf::actor_cast<stage_actor>(tie.other),
                   tied_gradient{own.step, tie.other_parameter, own.gradients[i]});
  }
  state.update.settling[own.step].own(own.gradients);
  settle_ties(self, own.step);
}

engine::work_item end_of(const stage_state& state, const step_key& key) {
  return {.kind = engine::work_kind::step_end, .step = state.steps.at(key).order.update};
}

/// Ends a step that changes no parameter: its running statistics are put back first.
void take_back(stage_pointer self, const step_key& key) {
  post_work(self->state, end_of(self->state, key),
            [modules = modules_of(self->state), key, to = caf::actor_cast<stage_actor>(self)] {
              for (auto* const module : modules) module->end(key, false);
              caf::anon_send(to, step_undone{key});
            });
}

void end_rehearsal(stage_pointer self, const gradients_ready& from) {
  auto& state = self->state;
  rehearsal_outcome outcome;
  outcome.gradients = engine::name_gradients(state.update.parameters, from.gradients);
  for (const auto& module : state.modules)
    std::ranges::move(engine::copy_buffers(module->layers()), std::back_inserter(outcome.buffers));
  state.update.rehearsal = std::move(outcome);
  take_back(self, from.step);
}

void update(stage_pointer self, const step_key& key, const engine::step_gradients& gradients) {
  const auto& order_of_step = self->state.steps.at(key).order;
  post_work(self->state, end_of(self->state, key), [modules = modules_of(self->state), key] {
    for (auto* const module : modules) module->end(key, true);
  });
  apply_gradients order{order_of_step.update, order_of_step.learning_rate, gradients};
  self->request(self->state.update.optimizer, update_deadline, std::move(order))
      .then(
          [self, key](const applied& outcome) {
            const auto found = self->state.steps.find(key);
            if (found == self->state.steps.end()) return;
            found->second.report.busy_s += outcome.busy_s;
            finish_step(self, key);
          },
          [self](const caf::error& why) { fail_all(self, from_caf(why)); });
}

/// The optimizer hears of every step: several may make one update.
void leave_out(stage_pointer self, const announced_step& step) {
  apply_gradients order{.update = step.order.update, .left_out = true};
  self->request(self->state.update.optimizer, update_deadline, std::move(order))
      .then([](const applied&) {},
            [self](const caf::error& why) { fail_all(self, from_caf(why)); });
}

void obey(stage_pointer self, const gradients_ready& from, const verdict& decided) {
  const auto found = self->state.steps.find(from.step);
  if (found == self->state.steps.end()) return;
  self->state.update.loss_scale = decided.loss_scale;
  if (decided.bad.empty()) return update(self, from.step, from.gradients);
  if (decided.ends_run) return give_up(self, {errc::handler_failed, decided.bad});
  found->second.report.skipped = decided.bad;
  leave_out(self, found->second);
  take_back(self, from.step);
}

/// The step's gradients are there: to the optimizer with them, unless they are not finite.
void conclude(stage_pointer self, const gradients_ready& from, announced_step& step) {
  auto& state = self->state;
  if (step.order.rehearsal) return end_rehearsal(self, from);
  const auto bad = step.bad.empty() ? from.bad : step.bad;
  const auto where = [name = state.name, update = step.order.update](const std::string& what) {
    return what.empty() ? what : "update " + std::to_string(update) + " on " + name + ": " + what;
  };
  if (!state.update.judge) {
    if (bad.empty()) return update(self, from.step, from.gradients);
    return fail_all(self, {errc::handler_failed,
                           "update " + std::to_string(step.order.update) + ": " + bad +
                               "; it was not applied (--on-nan skip leaves such updates out)"});
  }
  self->request(state.update.judge, verdict_deadline,
                ask_verdict{from.step, state.update.stages_behind, where(bad), !step.bad.empty()})
      .then([self, from](const verdict& decided) { obey(self, from, decided); },
            [self](const caf::error& why) { fail_all(self, from_caf(why)); });
}

}  // namespace

void sum_gradients(stage_pointer self, const step_key& key) {
  const auto step = self->state.steps.find(key);
  if (step == self->state.steps.end()) return;  // failed meanwhile
  step->second.report.loss_scale = loss_scale_of(self->state, step->second);
  if (const auto clean = check_contexts(self->state, key); !clean)
    return fail_all(self, clean.error());
  post_gradients(self, key, self->state.update.ties.empty(),
                 [](const module_list& modules, const auto&) {
                   engine::step_gradients all;
                   for (auto* const module : modules)
                     std::ranges::move(module->take_gradients(), std::back_inserter(all));
                   return all;
                 });
}

void on_gradients_ready(stage_pointer self, const gradients_ready& from) {
  const auto found = self->state.steps.find(from.step);
  if (found == self->state.steps.end()) return;  // failed meanwhile
  found->second.report.busy_s += from.busy_s;
  if (from.failure) return fail_all(self, {errc::handler_failed, *from.failure});
  if (!from.settled) return share_ties(self, from);
  conclude(self, from, found->second);
}

void on_tied_gradient(stage_pointer self, const tied_gradient& from) {
  auto& state = self->state;
  const auto step = state.steps.find(from.step);
  if (step == state.steps.end() || step->second.order.kind != engine::step_kind::training) {
    if (state.steps.empty()) return;  // failed meanwhile
    return log::warning(state.name + ": refused the gradient of the tied weight '" +
                        from.parameter + "' of " + engine::to_string(from.step) +
                        ", which is no training step under way");
  }
  const auto taken =
      state.update.settling[from.step].shared(from, state.update.ties, state.update.parameters);
  if (!taken) return fail_all(self, taken.error());
  settle_ties(self, from.step);
}

void on_step_undone(stage_pointer self, const step_undone& what) {
  if (!self->state.steps.contains(what.step)) return;  // failed meanwhile
  finish_step(self, what.step);
}

}  // namespace troupe::actors
