#include "actors/stage/work/step_end.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>
#include <variant>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/recovery/failed_work.hpp"
#include "actors/stage/mirror/version_updates.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/stage/work/actions.hpp"
#include "actors/stage/work/end_effects.hpp"
#include "actors/stage/work/replica_end.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/stage/unscale.hpp"
#include "engine/step/step_end_core.hpp"
#include "engine/verify/reference.hpp"
#include "messages/base/log.hpp"
#include "optimizers/options.hpp"

namespace troupe::actors {
namespace {

using engine::gradient_terms;
using engine::gradient_use;
using engine::step_key;

/// What every context of the step must have given back by now, or the step fails: memory that
/// stays behind would grow from step to step.
result<void> check_contexts(const stage_state& state, const step_key& key) {
  for (const auto& module : state.modules) {
    // Asked before the bytes are counted: a count from before it became true would be too high.
    const bool is_final = module->are_contexts_final();
    if (const auto bytes = module->contexts().bytes(key); bytes > 0 && is_final)
      return fail(errc::handler_failed, "the contexts of " + engine::to_string(key) +
                                            " still hold " + std::to_string(bytes) +
                                            " bytes at its end");
  }
  return {};
}

std::string at_scale(double loss_scale) {
  return " at loss scale " + optimizers::to_text(loss_scale);
}

/// Divides gradients by the loss scale and checks that they are finite. Empty: all are.
std::string unscale(const std::vector<engine::named_tensor>& parameters,
                    engine::step_gradients& gradients, double scale) {
  if (scale == 1) return engine::first_not_finite(parameters, gradients);
  if (engine::unscale(gradients, scale)) return "";
  return engine::first_not_finite(parameters, gradients) + at_scale(scale);
}

/// What complete gradients are prepared with, on the work thread.
struct preparation {
  std::vector<engine::named_tensor> parameters;
  double loss_scale = 1;
  double clip_value = 0;
  optimizers::gradient_accumulator* sums = nullptr;
  bool on_device = false;
};

/// Makes the update's gradients of a step's. Errors: those of adding them up.
result<void> add_up(engine::step_gradients& gradients, gradient_use use, const preparation& by) {
  if (use == gradient_use::check) return {};
  if (auto added = by.sums->add(gradients); !added) return added;
  gradients.clear();
  if (use == gradient_use::add) return {};
  gradients = by.sums->take_mean();
  if (by.clip_value > 0) gradients = optimizers::clipped(gradients, by.clip_value);
  return {};
}

/// Unscales complete gradients and makes the update's of them. Errors: those of adding them up.
result<void> prepare(gradients_ready& message, const gradient_terms& terms, const preparation& by) {
  auto& report = message.report;
  report.not_finite = unscale(by.parameters, message.gradients, by.loss_scale);
  if (!report.not_finite.empty()) return {};
  if (auto added = add_up(message.gradients, terms.use, by); !added) return added;
  if (terms.squares) report.squares = optimizers::squares_of_each(message.gradients);
  return {};
}

/// The same on a device, which is given all that there is to do before the host waits, once, for
/// what it is told: the losses, whether gradients are finite, and their squares. Those that are not
/// have been added up by then: what the sums hold is dropped, as it is wherever a step is left out.
result<void> prepare_there(gradients_ready& message, const gradient_terms& terms,
                           const preparation& by, engine::stage_module& last) {
  auto& gradients = message.gradients;
  if (by.loss_scale != 1) engine::divide_there(gradients, by.loss_scale);
  const auto magnitudes = engine::magnitudes_of(gradients);
  if (auto added = add_up(gradients, terms.use, by); !added) return added;
  std::vector<at::Tensor> told{magnitudes.values, at::Tensor()};
  if (terms.squares) told.back() = optimizers::squares_on_device(gradients);
  const auto losses = last.take_waiting_losses(message.step);
  for (const auto& each : losses) told.push_back(each.loss);
  auto known = engine::numbers_on_host(told);
  message.report.not_finite =
      engine::first_not_finite(by.parameters, magnitudes.places, known.front());
  for (std::size_t i = 0; i < losses.size(); ++i)
    message.losses.push_back({losses[i].microbatch, known[2 + i].front()});
  if (message.report.not_finite.empty()) {
    message.report.squares = std::move(known[1]);
    return {};
  }
  if (by.loss_scale != 1) message.report.not_finite += at_scale(by.loss_scale);
  if (terms.use != gradient_use::check) by.sums->clear();
  return {};
}

/// Sums gradients on the work thread; with `terms` they are complete.
template <class Compute>
void post_sum(stage_pointer self, const step_key& key, const std::optional<gradient_terms>& terms,
              Compute compute) {
  auto& state = self->state;
  const auto& step = state.steps.at(key);
  post_work(state, {.kind = engine::work_kind::gradient_sum, .step = step.order.number},
            [modules = modules_of(state), key, terms,
             by = preparation{state.end.parameters, step.report.loss_scale, state.end.clip_value,
                              &state.end.sums, !state.streams->is_cpu()},
             compute = std::move(compute), to = caf::actor_cast<stage_actor>(self)]() mutable {
              const auto begin = std::chrono::steady_clock::now();
              gradients_ready message{.step = key, .complete = terms.has_value()};
              try {
                const at::NoGradGuard no_grad;
                message.gradients = compute(modules, by.parameters);
                if (!terms)
                  for (auto* const module : modules)
                    message.statistics.push_back(module->take_statistics(key));
                if (terms)
                  if (auto done = by.on_device ? prepare_there(message, *terms, by, *modules.back())
                                               : prepare(message, *terms, by);
                      !done)
                    message.failure = done.error().text;
              } catch (const std::exception& problem) {
                message.failure = engine::reason_of(problem);
              }
              message.busy_s =
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
              caf::anon_send(to, std::move(message));
            });
}

void post_end(const stage_state& state, const step_key& key, std::function<void()> task) {
  post_work(state, {.kind = engine::work_kind::step_end, .step = state.steps.at(key).order.number},
            std::move(task));
}

/// Both ends of each tie inside the stage, in one of its chunks or in two, get their sum.
void sum_ties_inside(const module_list& modules,
                     const std::vector<engine::named_tensor>& parameters,
                     engine::step_gradients& gradients) {
  for (const auto* const module : modules) engine::sum_ties(parameters, module->ties(), gradients);
}

void perform(stage_pointer self, const engine::sum_own& what) {
  auto& state = self->state;
  auto& step = state.steps.at(what.key);
  step.report.loss_scale = loss_scale_of(state, step);
  if (const auto clean = check_contexts(state, what.key); !clean)
    return fail_all(self, clean.error());
  const bool shared = state.end.replicas.core.ranks() > 1;
  post_sum(self, what.key, what.complete,
           [shared](const module_list& modules, const auto& parameters) {
             engine::step_gradients all;
             for (auto* const module : modules)
               std::ranges::move(module->take_sums(), std::back_inserter(all));
             if (!shared) sum_ties_inside(modules, parameters, all);
             return all;
           });
}

void perform(stage_pointer self, const engine::sum_replicas& what) {
  sum_over_replicas(self, what.key);
}

/// Where its receiver may be replaced, it is remembered.
void send_tie(stage_pointer self, const sent_tie& what) {
  post_tie(self, what);
  if (self->state.replay.logs) self->state.replay.ties.push_back(what);
}

void perform(stage_pointer self, const engine::share_ties& what) {
  const auto& end = self->state.end;
  for (const auto& tie : end.ties) {
    const auto own = std::ranges::find(end.parameters, tie.parameter, &engine::named_tensor::name);
    const auto index = static_cast<std::size_t>(own - end.parameters.begin());
    send_tie(self, {what.key, static_cast<std::size_t>(&tie - end.ties.data()),
                    end.gradients.at(index), self->state.streams->mark()});
  }
}

/// Parameters that another replica updates, unless the step's gradients are what is wanted.
std::vector<std::size_t> others_of(const stage_state& state, const step_key& key) {
  std::vector<std::size_t> others;
  if (state.steps.at(key).order.dry_run) return others;
  for (std::size_t i = 0; i < state.end.parameters.size(); ++i)
    if (!state.end.replicas.owns(i)) others.push_back(i);
  return others;
}

void perform(stage_pointer self, const engine::sum_with_ties& what) {
  auto& end = self->state.end;
  // What other replicas lent, or were sent, is not to be written: a second handle says so.
  post_sum(self, what.key, what.terms,
           [own = std::exchange(end.gradients, {}), others = end.tied.take(what.key),
            statistics = std::exchange(end.all_statistics, {}), key = what.key,
            shared = end.replicas.core.ranks() > 1, drops = others_of(self->state, what.key)](
               const module_list& modules, const auto& parameters) mutable {
             for (std::size_t chunk = 0; chunk < statistics.size(); ++chunk)
               modules.at(chunk)->fold_statistics(key, statistics[chunk]);
             if (shared) sum_ties_inside(modules, parameters, own);
             auto sums = add_ties(shared ? own : std::move(own), others, parameters);
             for (const auto i : drops) sums[i].reset();
             return sums;
           });
}

/// A vote says, beside what it holds, that the stage's last version is kept.
void vote(stage_pointer self, const engine::step_vote& what) {
  const auto refused = [self](const caf::error& why) { fail_all(self, from_caf(why)); };
  self->request(self->state.end.coordinator, usual_deadlines.step, step_vote(what))
      .then(
          [self](const step_decision& decision) {
            if (!self->state.steps.contains(decision.step)) return;  // failed meanwhile
            self->state.end.loss_scale = decision.loss_scale;
            forget_decided(self, decision.step);
            end_step(self, self->state.end.core->decided(decision));
          },
          refused);
}

void perform(stage_pointer self, const engine::cast_vote& what) {
  if (const auto& why = self->state.versions.problem) return fail_all(self, *why);
  when_stored(self, [self, cast = what.vote](const result<void>& all) {
    if (all) vote(self, cast);
  });
}

void perform(stage_pointer self, const engine::keep_gradients&) {
  auto& state = self->state;
  const auto on_device = state.streams->computing();
  dry_run_outcome outcome;
  outcome.gradients = engine::name_gradients(state.end.parameters, state.end.gradients);
  for (const auto& module : state.modules)
    std::ranges::move(engine::copy_buffers(module->layers()), std::back_inserter(outcome.buffers));
  state.end.dry_run = std::move(outcome);
}

void update_failed(stage_pointer self, const step_key& key, const caf::error& why) {
  const auto told = from_caf(why);
  const auto found = self->state.steps.find(key);
  if (found == self->state.steps.end() || told.code != errc::handler_failed)
    return fail_all(self, told);
  fail_all(self, failure_of_work("the update", found->second.order, told.text));
}

void perform(stage_pointer self, const engine::apply_step& what) {
  auto& state = self->state;
  post_end(state, what.key, [modules = modules_of(state), key = what.key] {
    for (auto* const module : modules) module->end(key, true);
  });
  if (!what.scale) return;
  const auto& order = state.steps.at(what.key).order;
  note_update(state, order, *what.scale);
  self->request(state.end.optimizer, usual_deadlines.update,
                apply_gradients{order.number, order.learning_rate, *what.scale,
                                std::exchange(state.end.gradients, {})})
      .then(
          [self, key = what.key](const gradients_applied& outcome) {
            const auto found = self->state.steps.find(key);
            if (found == self->state.steps.end()) return;  // failed meanwhile
            found->second.report.share.busy_s += outcome.busy_s;
            if (self->state.end.replicas.shares_state()) return share_parameters(self, key);
            end_step(self, self->state.end.core->ended(key));
          },
          [self, key = what.key](const caf::error& why) { update_failed(self, key, why); });
}

/// Puts running statistics back.
void perform(stage_pointer self, const engine::undo_step& what) {
  auto& state = self->state;
  post_end(state, what.key,
           [modules = modules_of(state), what, sums = &state.end.sums,
            to = caf::actor_cast<stage_actor>(self)] {
             for (auto* const module : modules) module->end(what.key, false);
             if (what.drops_sums) sums->clear();
             caf::anon_send(to, step_undone{what.key});
           });
}

void perform(stage_pointer self, const engine::finish_step& what) {
  self->state.end.gradients.clear();
  self->state.steps.at(what.key).report.skipped = what.left_out;
  finish_step(self, what.key);
}

void perform(stage_pointer self, const engine::end_run& what) {
  give_up(self, {errc::handler_failed, what.why});
}

}  // namespace

void end_step(stage_pointer self, const result<engine::step_end_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects)
    std::visit([self](const auto& what) { perform(self, what); }, effect);
}

void couple(stage_state& state, const connect_stage& to) {
  auto& end = state.end;
  end.ties = to.ties;
  end.coordinator = caf::actor_cast<step_coordinator_actor>(to.coordinator);
  end.may_leave_out = to.may_leave_out;
  engine::step_end_rules rules{.stage = to.place,
                               .may_leave_out = to.may_leave_out,
                               .clips_norm = to.clips_norm,
                               .accumulate = end.accumulate};
  for (const auto& tie : to.ties) rules.ties.insert(tie.parameter);
  end.tied.clear();
  end.replicas = replica_sum(to.replicas, end.parameters, state.modules.size(),
                             to.logs ? std::size_t{end.accumulate} + 1 : 0);
  rules.reduces = end.replicas.is_needed();
  rules.always_votes = !to.keepers.empty();
  rules.logs = to.logs;
  rules.tells_squares = to.replicas.own == 0 || to.replicas.shares_state;
  *end.core = engine::step_end_core(std::move(rules));
}

void post_tie(stage_pointer self, const sent_tie& what) {
  const auto& tie = self->state.end.ties.at(what.tie);
  send_tensors(self, caf::actor_cast<stage_actor>(tie.other),
               tied_gradient{what.step, tie.other_parameter, what.value, {}}, what.made);
}

void on_gradients_ready(stage_pointer self, const gradients_ready& from) {
  auto& state = self->state;
  const auto found = state.steps.find(from.step);
  if (found == state.steps.end()) return;  // failed meanwhile
  found->second.report.share.busy_s += from.busy_s;
  if (from.failure)
    return fail_all(self,
                    failure_of_work("summing the gradients", found->second.order, *from.failure));
  if (!add_losses(self, found->second, from.losses)) return;
  state.end.gradients = from.gradients;
  state.end.statistics = from.statistics;
  end_step(self, from.complete ? state.end.core->gradients_ready(from.step, from.report)
                               : state.end.core->own_summed(from.step));
}

void on_tied_gradient(stage_pointer self, const tied_gradient& from) {
  auto& state = self->state;
  if (has_departed(self) || state.end.core->take_repeat(from.step, from.parameter)) return;
  const auto effects = state.end.core->tie_arrived(from.step, from.parameter);
  if (!effects && effects.error().code == errc::stale) {
    if (state.steps.empty()) return;  // failed meanwhile
    return log::warning(state.name + ": refused " + effects.error().text);
  }
  auto here = from;
  if (effects && here.value) here.value = state.streams->take(*from.value, from.made);
  if (effects)
    if (const auto kept = state.end.tied.keep(here, state.end.parameters); !kept)
      return fail_all(self, kept.error());
  end_step(self, effects);
}

void on_step_undone(stage_pointer self, const step_undone& what) {
  if (!self->state.steps.contains(what.step)) return;  // failed meanwhile
  end_step(self, self->state.end.core->ended(what.step));
}

}  // namespace troupe::actors
