#include "actors/stage/work/actions.hpp"

#include <ATen/ops/scalar_tensor.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/torch_error.hpp"
#include "engine/step/step_end_core.hpp"

namespace troupe::actors {
namespace {

using engine::action_kind;

/// Where an action's output goes: to the stage's actor as soon as it is there, since the neighbour
/// need not wait for the weights' gradients.
struct way_out {
  stage_actor to;

  void operator()(output_ready output, const engine::device_streams& streams) const {
    output.made = output.tensor.defined() ? streams.mark() : nullptr;
    caf::anon_send(to, std::move(output));
  }
};

/// Nothing: the action is one on a single micro-batch.
std::optional<group_action> group_of(stage_pointer self, const announced_step& step,
                                     const engine::action& what, const engine::work_item& item) {
  const auto& state = self->state;
  if (!step.groups) return std::nullopt;
  return state.norm.action_of(
      *step.groups, step.order.step, what,
      {caf::actor_cast<stage_actor>(self), state.connection, state.doing, item});
}

/// For this thread's arithmetic.
at::Tensor take(const engine::device_streams& streams, const arrived_tensor& what) {
  if (!what.copy.valid()) return streams.take(what.tensor, what.made);
  const auto& [tensor, made] = what.copy.get();
  return streams.take(tensor, made);
}

/// An action on all members of a group, for which batch norms wait for each other.
void perform_group(engine::stage_module& module, std::int64_t batch_size, const group_action& group,
                   const microbatch_inbox& in, const way_out& out, work_done& outcome) {
  const auto& key = outcome.step;
  const auto& action = outcome.action;
  const auto& streams = module.streams();
  engine::group_pass pass(module, *group.lanes, group.exchange, key, group.group);
  if (action.kind == action_kind::forward) {
    auto forward = pass.forward(take(streams, in.input), take(streams, in.labels), batch_size);
    out({key, action, std::move(forward.activation)}, streams);
    if (module.options().is_last) outcome.losses = std::move(forward.losses);
  } else if (action.kind != action_kind::weight_gradient) {
    out({key, action, pass.backward_input(take(streams, in.gradient))}, streams);
  }
  if (action.kind == action_kind::backward || action.kind == action_kind::weight_gradient)
    pass.backward_weights();
}

/// Runs on the work thread. Torch's exceptions end here.
work_done perform(engine::stage_module& module, const engine::step_key& key,
                  const engine::action& action, engine::step_kind kind, std::int64_t batch_size,
                  const microbatch_inbox& in, const std::optional<group_action>& group,
                  const way_out& out) {
  const auto& streams = module.streams();
  work_done outcome{.step = key, .action = action};
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (group) {
      perform_group(module, batch_size, *group, in, out, outcome);
    } else if (action.kind == action_kind::forward) {
      auto forward = module.forward(key, kind, action.microbatch, take(streams, in.input),
                                    take(streams, in.labels), batch_size);
      out({key, action, std::move(forward.activation)}, streams);
      if (module.options().is_last)
        outcome.losses.push_back({action.microbatch, forward.loss, std::move(forward.metrics)});
    } else if (action.kind != action_kind::weight_gradient) {
      auto gradient = module.backward_input(key, action.microbatch, take(streams, in.gradient));
      out({key, action, std::move(gradient)}, streams);
    }
    if (!group &&
        (action.kind == action_kind::backward || action.kind == action_kind::weight_gradient))
      module.backward_weights(key, action.microbatch);
  } catch (const std::exception& problem) {
    outcome.failure = engine::reason_of(problem);
  }
  outcome.busy_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() +
                   module.take_seconds_ahead() - (group ? *group->waited_s : 0);
  return outcome;
}

bool begins_backward(const engine::stage_module& module, const engine::action& what) {
  const bool is_backward =
      what.kind == action_kind::backward || what.kind == action_kind::input_gradient;
  return is_backward && module.options().is_last;
}

/// The gradient of the loss, as the last slice of the model takes it.
at::Tensor seed_of(double loss_scale) {
  return loss_scale == 1 ? at::Tensor() : at::scalar_tensor(loss_scale, at::kFloat);  // [] f32
}

engine::work_item item_of(const engine::action& what, const run_stage& order,
                          const microbatch_inbox& in) {
  using engine::work_kind;
  engine::work_item item{.evaluation = order.kind == engine::step_kind::evaluation,
                         .step = order.number,
                         .microbatch = what.microbatch.value,
                         .chunk = what.chunk};
  switch (what.kind) {
    case action_kind::forward:
      item.kind = work_kind::forward;
      break;
    case action_kind::backward:
      item.kind = work_kind::backward;
      break;
    case action_kind::input_gradient:
      item.kind = work_kind::input_gradient;
      break;
    case action_kind::weight_gradient:
      item.kind = work_kind::weight_gradient;
      break;
  }
  const auto& given = what.kind == action_kind::forward ? in.input.tensor : in.gradient.tensor;
  if (given.defined()) item.size = static_cast<std::uint64_t>(given.numel());
  return item;
}

/// Counts what this process computes again.
void count_action(stage_pointer self, announced_step& step, const engine::action& what) {
  const auto& order = step.order;
  if (order.kind != engine::step_kind::training || order.dry_run) return;
  if (self->state.replay.begun->note(self->state.versions.stage, order.number, what))
    ++step.report.share.computed_again;
}

/// The logical replica that a micro-batch belongs to, of those that the stage stands for.
std::size_t logical_of(const run_stage& order, microbatch_id microbatch) {
  std::uint64_t end = 0;
  for (std::size_t which = 0; which < order.shares.size(); ++which)
    if (microbatch.value < (end += order.shares[which])) return which;
  return 0;
}

/// Errors: those of the core, for one that is not finite.
result<void> add_loss(stage_pointer self, announced_step& step, const engine::microbatch_loss& of) {
  const auto logical = logical_of(step.order, of.microbatch);
  step.report.losses.at(logical) += of.loss;
  if (!of.metrics.empty()) {
    step.report.metrics.resize(step.report.losses.size());
    engine::add_sums(step.report.metrics.at(logical), of.metrics);
  }
  if (std::isfinite(of.loss) || step.order.kind != engine::step_kind::training) return {};
  return self->state.end.core->loss_not_finite(
      step.order.step, "the loss of micro-batch " + std::to_string(of.microbatch.value) + " is " +
                           (std::isnan(of.loss) ? "NaN" : "infinite"));
}

}  // namespace

void start_work(stage_pointer self, const engine::step_key& key, const engine::action& what) {
  auto& state = self->state;
  const auto step = state.steps.find(key);
  if (step == state.steps.end()) return;  // it was failed meanwhile
  const microbatch_key from{key, what.microbatch, what.chunk};
  microbatch_inbox in;
  if (what.kind == action_kind::forward) {
    in.input = std::move(state.inbox[from].input);
    in.labels = std::move(state.inbox[from].labels);
  } else if (what.kind != action_kind::weight_gradient) {
    in.gradient = std::move(state.inbox[from].gradient);
    state.inbox.erase(from);
  }
  if (step->second.order.kind == engine::step_kind::evaluation) state.inbox.erase(from);
  if (begins_backward(*state.modules[what.chunk], what))
    in.gradient = {seed_of(loss_scale_of(state, step->second))};
  count_action(self, step->second, what);
  const auto item = item_of(what, step->second.order, in);
  post_work(state, item,
            [module = state.modules[what.chunk].get(), key, what, kind = step->second.order.kind,
             batch_size = step->second.order.batch_size, in = std::move(in),
             group = group_of(self, step->second, what, item),
             out = way_out{caf::actor_cast<stage_actor>(self)}] {
              caf::anon_send(out.to, perform(*module, key, what, kind, batch_size, in, group, out));
            });
}

bool fetch_losses(stage_pointer self, const engine::step_key& key) {
  auto& state = self->state;
  const auto& order = state.steps.at(key).order;
  const bool are_there = !state.streams->is_cpu() && state.modules.back()->options().is_last;
  if (!are_there || order.kind == engine::step_kind::training) return false;
  post_work(state, {.kind = engine::work_kind::step_end, .step = order.number},
            [module = state.modules.back().get(), key, to = caf::actor_cast<stage_actor>(self)] {
              losses_known message{.step = key};
              try {
                message.losses = module->take_losses(key);
              } catch (const std::exception& problem) {
                message.failure = engine::reason_of(problem);
              }
              caf::anon_send(to, std::move(message));
            });
  return true;
}

bool add_losses(stage_pointer self, announced_step& step,
                const std::vector<engine::microbatch_loss>& of) {
  for (const auto& each : of)
    if (const auto added = add_loss(self, step, each); !added)
      return fail_all(self, added.error()), false;
  return true;
}

}  // namespace troupe::actors
