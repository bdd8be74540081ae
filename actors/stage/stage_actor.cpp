#include "actors/stage/stage_actor.hpp"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <iterator>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "actors/stage/load_files.hpp"
#include "actors/stage/losses.hpp"
#include "actors/stage/replica_end.hpp"
#include "actors/stage/run_order.hpp"
#include "actors/stage/stage_replay.hpp"
#include "actors/stage/stage_state.hpp"
#include "actors/stage/step_end.hpp"
#include "actors/stage/versions.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/model/model.hpp"
#include "engine/schedule/plan_book.hpp"
#include "engine/schedule/plan_text.hpp"

namespace troupe::actors {
namespace {

using engine::action_kind;
using engine::step_key;

/// Where an action's output goes: to the stage's actor as soon as it is there, since the neighbour
/// need not wait for the weights' gradients.
struct way_out {
  stage_actor to;
  engine::work_thread* leaving = nullptr;  // not null: by way of the host

  void operator()(output_ready output, const engine::device_streams& streams) const {
    output.made = output.tensor.defined() ? streams.mark() : nullptr;
    if (leaving == nullptr) return caf::anon_send(to, std::move(output));
    leaving->post([to = to, output = std::move(output)]() mutable {
      output.tensor = engine::to_host(output.tensor, output.made);
      output.made.reset();
      caf::anon_send(to, std::move(output));
    });
  }
};

/// Runs on the work thread. Torch's exceptions end here.
work_done perform(engine::stage_module& module, const engine::start_action& what,
                  engine::step_kind kind, std::int64_t batch_size, const microbatch_inbox& in,
                  const way_out& out) {
  const auto& [key, action] = what;
  const auto& streams = module.streams();
  work_done outcome{.step = key, .action = action};
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (action.kind == action_kind::forward) {
      auto forward =
          module.forward(key, kind, action.microbatch, streams.take(in.input, in.input_made),
                         streams.take(in.labels, {}), batch_size);
      out({key, action, std::move(forward.activation)}, streams);
      outcome.loss = forward.loss;
      outcome.correct = forward.correct;
    } else if (action.kind != action_kind::weight_gradient) {
      auto gradient = module.backward_input(key, action.microbatch,
                                            streams.take(in.gradient, in.gradient_made));
      out({key, action, std::move(gradient)}, streams);
    }
    if (action.kind == action_kind::backward || action.kind == action_kind::weight_gradient)
      module.backward_weights(key, action.microbatch);
  } catch (const std::exception& problem) {
    outcome.failure = engine::reason_of(problem);
  }
  outcome.busy_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() +
                   module.take_seconds_ahead();
  return outcome;
}

std::uint32_t chunks_of(const stage_state& state) {
  return static_cast<std::uint32_t>(state.modules.size());
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
  const auto& given = what.kind == action_kind::forward ? in.input : in.gradient;
  if (given.defined()) item.size = static_cast<std::uint64_t>(given.numel());
  return item;
}

way_out way_of(stage_pointer self, const engine::action& what) {
  const auto& state = self->state;
  const auto& receiver =
      (what.kind == action_kind::forward ? state.after : state.before)[what.chunk].stage;
  const bool leaves = receiver && is_elsewhere(self, receiver);
  return {caf::actor_cast<stage_actor>(self), leaves ? state.leaving.get() : nullptr};
}

void start(stage_pointer self, const engine::start_action& what) {
  auto& state = self->state;
  const auto step = state.steps.find(what.key);
  if (step == state.steps.end()) return;  // it was failed meanwhile
  const microbatch_key key{what.key, what.what.microbatch, what.what.chunk};
  microbatch_inbox in;
  if (what.what.kind == action_kind::forward) {
    in.input = std::move(state.inbox[key].input);
    in.input_made = std::move(state.inbox[key].input_made);
    in.labels = std::move(state.inbox[key].labels);
  } else if (what.what.kind != action_kind::weight_gradient) {
    in.gradient = std::move(state.inbox[key].gradient);
    in.gradient_made = std::move(state.inbox[key].gradient_made);
    state.inbox.erase(key);
  }
  if (step->second.order.kind == engine::step_kind::evaluation) state.inbox.erase(key);
  if (begins_backward(*state.modules[what.what.chunk], what.what))
    in.gradient = seed_of(loss_scale_of(state, step->second));
  count_action(self, step->second, what.what);
  const auto item = item_of(what.what, step->second.order, in);
  post_work(state, item,
            [module = state.modules[what.what.chunk].get(), what, kind = step->second.order.kind,
             batch_size = step->second.order.batch_size, in = std::move(in),
             out = way_of(self, what.what)] {
              caf::anon_send(out.to, perform(*module, what, kind, batch_size, in, out));
            });
}

void answer(stage_pointer self, const step_key& key) {
  auto step = self->state.steps.extract(key);
  if (!step) return;
  auto& [order, report, promise] = step.mapped();
  report.step = key;
  report.peak_memory_bytes = peak_memory_bytes();
  for (const auto& module : self->state.modules)
    report.peak_context_bytes += module->take_peak_context_bytes();
  promise.deliver(report);
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
  const auto& [tensor, made] = output->second;
  if (is_gradient)
    self->send(stage, gradient{key, tensor, made});
  else
    self->send(stage, activation{key, tensor, made});
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
  if (from.failure) return fail_all(self, {errc::handler_failed, *from.failure});
  for (const auto& each : from.losses)
    if (const auto added = add_loss(self, found->second, each); !added)
      return fail_all(self, added.error());
  actions_done(self, from.step);
}

void perform_effects(stage_pointer self, const result<engine::stage_effects>& effects) {
  if (!effects) return fail_all(self, effects.error());
  for (const auto& effect : *effects) {
    if (const auto* action = std::get_if<engine::start_action>(&effect)) {
      start(self, *action);
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

/// A plan comes from another process: it is checked here, and nowhere after.
caf::result<acknowledged> on_announce_plan(stage_pointer self, const announce_plan& told) {
  auto& state = self->state;
  const auto refuse = [&](errc code, const std::string& why) {
    return to_caf({code, state.name + ": " + why});
  };
  if (told.number >= engine::plan_book::capacity)
    return refuse(errc::bad_frame, "plan " + std::to_string(told.number) +
                                       " is out of range: below " +
                                       std::to_string(engine::plan_book::capacity));
  if (told.kind != engine::step_kind::training && told.kind != engine::step_kind::evaluation)
    return refuse(errc::bad_frame, "a plan for no kind of step");
  if (told.chunks != state.modules.size())
    return refuse(errc::bad_config, "a plan for " + std::to_string(told.chunks) +
                                        " chunks, but the stage has " +
                                        std::to_string(state.modules.size()));
  auto proved = engine::proved_plan::prove(told.steps, told.microbatches, told.chunks, told.kind);
  if (!proved) return refuse(proved.error().code, "its plan is wrong: " + proved.error().text);
  state.plans.insert_or_assign(told.number, std::move(*proved));
  return acknowledged{};
}

caf::result<stage_done> on_run(stage_pointer self, const run_stage& order) {
  auto& state = self->state;
  if (state.before.empty())
    return to_caf({errc::bad_config, state.name + ": a run before its neighbours are known"});
  auto plan = plan_of(state, order);
  if (!plan) return to_caf({plan.error().code, state.name + ": " + plan.error().text});
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
  announced_step announced{order, {}, promise};
  announced.report.losses.resize(std::max<std::size_t>(1, order.shares.size()));
  state.steps.emplace(order.step, std::move(announced));
  if (trains)
    state.work->post(
        [modules = modules_of(state), key = order.step, takers = takers_of(self, order.step),
         terms = engine::step_terms{.number = order.number,
                                    .reversible = order.dry_run || state.end.may_leave_out,
                                    .first_microbatch = order.first_microbatch,
                                    .shares = order.shares,
                                    .keeps_statistics = state.end.replicas.is_needed()}] {
          for (std::size_t chunk = 0; chunk < modules.size(); ++chunk)
            modules[chunk]->begin(key, terms, takers[chunk]);
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
    state.outputs[{microbatch_key{output.step, microbatch, chunk}, on}] = {output.tensor,
                                                                           output.made};
  perform_effects(self, state.core.output_ready(output.step, output.action));
}

void on_work_done(stage_pointer self, const work_done& outcome) {
  const auto found = self->state.steps.find(outcome.step);
  if (found == self->state.steps.end()) return;  // failed meanwhile
  if (outcome.failure)
    return fail_all(self, {errc::handler_failed,
                           engine::to_string(outcome.action, chunks_of(self->state)) + " of " +
                               engine::to_string(outcome.step) + " failed: " + *outcome.failure});
  if (const auto added =
          add_loss(self, found->second, {outcome.action.microbatch, outcome.loss, outcome.correct});
      !added)
    return fail_all(self, added.error());
  found->second.report.busy_s += outcome.busy_s;
  perform_effects(self, self->state.core.action_done(outcome.step, outcome.action));
}

std::vector<slice_link> to_links(const std::vector<neighbour>& from) {
  std::vector<slice_link> links;
  links.reserve(from.size());
  for (const auto& [stage, chunk] : from)
    links.push_back({caf::actor_cast<stage_actor>(stage), chunk});
  return links;
}

/// Whether a slice has neighbours exactly where the model goes on.
bool fits(const engine::stage_options& place, const neighbour& before, const neighbour& after) {
  return (before.stage == nullptr) == place.is_first && (after.stage == nullptr) == place.is_last;
}

/// How its steps end from now on.
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
  end.replicas = replica_sum(to.replicas, end.parameters, state.modules.size());
  rules.reduces = end.replicas.is_needed();
  rules.always_votes = !to.keepers.empty();
  rules.logs = to.logs;
  rules.tells_squares = to.replicas.own == 0 || to.replicas.shares_state;
  end.core = engine::step_end_core(std::move(rules));
}

caf::result<acknowledged> on_connect(stage_pointer self, const connect_stage& to) {
  auto& state = self->state;
  const auto refuse = [&](const char* why) {
    return to_caf({errc::bad_config, state.name + ": " + why});
  };
  if (to.before.size() != state.modules.size() || to.after.size() != state.modules.size())
    return refuse("it needs neighbours for each of its chunks");
  for (std::size_t chunk = 0; chunk < state.modules.size(); ++chunk) {
    const auto& place = state.modules[chunk]->options();
    if (!fits(place, to.before[chunk], to.after[chunk]) ||
        (!to.feeder && (place.is_first || place.is_last)))
      return refuse("its neighbours do not fit its place");
  }
  if (to.credits < 1) return refuse("an edge needs at least one credit");
  if (!std::ranges::all_of(to.ties, [](const tied_parameter& tie) { return bool(tie.other); }))
    return refuse("a tie of it names no other stage");
  if ((to.may_leave_out || to.clips_norm || !to.keepers.empty()) && !to.coordinator)
    return refuse("its steps depend on those of other stages, but it has no coordinator");
  if (to.replicas.logical < 1 ||
      (!to.replicas.stages.empty() && to.replicas.own >= to.replicas.stages.size()))
    return refuse("its replica is none of those it is told of");
  if (!std::ranges::all_of(to.replicas.stages, [](const auto& stage) { return bool(stage); }))
    return refuse("a replica of it is no stage");
  if (to.replicas.sums > engine::replica_sum_way::fast)
    return refuse("its replicas are to sum in a way that there is not");
  if (!std::ranges::all_of(to.keepers, [](const auto& keeper) { return bool(keeper); }))
    return refuse("a keeper of its versions is none");
  if (to.logs && (to.keepers.empty() || to.replicas.stages.size() > 1))
    return refuse("it is to log its edges, which needs keepers, and one replica");
  if (!state.steps.empty()) return refuse("it cannot be connected while a step is under way");
  state.core = engine::stage_core(to.credits, engine::execution::ready, to.logs);
  state.plans.clear();
  state.before = to_links(to.before);
  state.after = to_links(to.after);
  state.feeder = caf::actor_cast<feeder_actor>(to.feeder);
  state.versions = {.keepers = {}, .stage = to.place.value};
  for (const auto& each : to.keepers)
    state.versions.keepers.push_back(caf::actor_cast<keeper_actor>(each));
  state.versions.stores =
      stores_core(to.keepers.size(), to.logs ? std::size_t{kept_versions::most} : 0);
  state.replay = {.logs = to.logs,
                  .window = engine::replay_window(state.end.accumulate),
                  .begun = state.replay.begun};
  couple(state, to);
  if (auto joined = join_replicas(self, to.replicas); !joined)
    return to_caf({joined.error().code, state.name + ": " + joined.error().text});
  return acknowledged{};
}

/// Null for a chunk that the stage does not have.
engine::stage_module* module_of(const stage_state& state, std::uint32_t chunk) {
  return chunk < state.modules.size() ? state.modules[chunk].get() : nullptr;
}

caf::error no_such_chunk(const stage_state& state, std::uint32_t chunk) {
  return to_caf({errc::bad_config, state.name + " has no chunk " + std::to_string(chunk)});
}

caf::result<acknowledged> on_load(stage_pointer self, const load_weights& from) {
  auto& state = self->state;
  const auto* module = module_of(state, from.chunk);
  if (!module) return no_such_chunk(state, from.chunk);
  const auto on_device = state.streams->computing();
  if (from.piece.begin == list_place{}) state.loading.erase(from.chunk);
  auto& loader =
      state.loading.try_emplace(from.chunk, engine::collect_weights(module->layers()), from.partly)
          .first->second;
  if (auto added = loader.add(from.piece); !added)
    return to_caf({added.error().code, state.name + ": " + added.error().text});
  if (loader.complete()) state.loading.erase(from.chunk);
  return acknowledged{};
}

/// The piece of a list that is asked for, as copies: the list may change when the answer is sent.
template <class Answer>
caf::result<Answer> piece_of(const stage_state& state,
                             const std::vector<engine::named_tensor>& list, const list_place& from,
                             const piece_limits& most) {
  const auto on_device = state.streams->computing();
  auto piece = cut_piece(list, from, most, piece_tensors::copied);
  if (!piece) return to_caf({piece.error().code, state.name + ": " + piece.error().text});
  return Answer{std::move(*piece)};
}

caf::result<weights_piece> on_read(stage_pointer self, const read_weights& what) {
  const auto* module = module_of(self->state, what.chunk);
  if (!module) return no_such_chunk(self->state, what.chunk);
  return piece_of<weights_piece>(self->state, engine::collect_weights(module->layers()), what.from,
                                 what.most);
}

caf::result<dry_run_part> on_read_dry_run(stage_pointer self, const read_dry_run& what) {
  const auto& outcome = self->state.end.dry_run;
  if (!outcome) return to_caf({errc::stale, self->state.name + ": there was no dry run"});
  return piece_of<dry_run_part>(self->state, what.buffers ? outcome->buffers : outcome->gradients,
                                what.from, what.most);
}

caf::result<outputs_piece> on_read_outputs(stage_pointer self, const read_outputs& what) {
  const auto& outputs = self->state.predicted;
  if (outputs.empty())
    return to_caf({errc::stale, self->state.name + ": there was no evaluation without labels"});
  return piece_of<outputs_piece>(self->state, outputs, what.from, what.most);
}

stage_actor::behavior_type stage_behavior(stage_pointer self,
                                          const std::shared_ptr<stage_parts>& given) {
  auto& state = self->state;
  state.name = std::move(given->name);
  state.modules = std::move(given->modules);
  for (const auto& module : state.modules)
    std::ranges::copy(module->parameters(), std::back_inserter(state.end.parameters));
  state.end.optimizer = std::move(given->optimizer);
  state.end.accumulate = given->accumulate;
  state.end.clip_value = given->clip_value;
  if (given->begun) state.replay.begun = std::move(given->begun);
  state.doing = std::move(given->doing);
  state.summing = std::move(given->summing);
  state.threads = given->threads;
  state.streams = state.modules.front()->options().streams;
  state.collectives = std::move(given->collectives);
  if (!state.streams->is_cpu())
    state.leaving = std::make_unique<engine::work_thread>(
        state.name + " out", 1, std::function<bool()>(),
        [name = state.name, here = self->address()](const std::exception& problem) {
          end_because(here, name, problem);
        });
  end_when_thrown(*self, state.name, [self](const error& why) { give_up(self, why); });
  self->set_exit_handler([self](const caf::exit_msg& exit) {
    if (is_own(exit.reason)) give_up(self, from_caf(exit.reason));
    self->quit(exit.reason);
  });
  self->set_down_handler([self](const caf::down_msg& down) { on_replica_down(self, down.source); });
  state.work = std::make_unique<engine::work_thread>(
      state.name, given->threads,
      [modules = modules_of(state), doing = state.doing] {
        engine::activity_scope scope(*doing, {.kind = engine::work_kind::weight_gradient_ahead});
        const bool did_some =
            std::ranges::any_of(modules, [](auto* module) { return module->work_ahead(); });
        if (!did_some) scope.withdraw();
        return did_some;
      },
      [name = state.name, here = self->address()](const std::exception& problem) {
        end_because(here, name, problem);
      });
  // Of what it sent: a message that a limit of the link keeps here.
  self->set_error_handler([self](const caf::error& why) { fail_all(self, from_caf(why)); });
  return {
      [self](const ask_sum_offer&) { return offer_sum(self); },
      [self](const invite_replicas& wanted) { return on_invite_replicas(self, wanted); },
      [self](const connect_stage& to) {
        return answering(self->state.name, [&] { return on_connect(self, to); });
      },
      [self](const announce_plan& told) {
        return answering(self->state.name, [&] { return on_announce_plan(self, told); });
      },
      [self](const run_stage& order) {
        return answering(self->state.name, [&] { return on_run(self, order); });
      },
      [self](const activation& in) {
        if (has_departed(self)) return;
        if (!is_repeat(self, engine::edge::input, in.key)) {
          self->state.inbox[in.key].input = in.tensor;
          self->state.inbox[in.key].input_made = in.made;
        }
        perform_effects(
            self, self->state.core.input_arrived(in.key.step, in.key.microbatch, in.key.chunk));
      },
      [self](const target& in) {
        self->state.inbox[in.key].labels = in.labels;
        perform_effects(
            self, self->state.core.target_arrived(in.key.step, in.key.microbatch, in.key.chunk));
      },
      [self](const gradient& in) {
        if (has_departed(self)) return;
        if (!is_repeat(self, engine::edge::gradient, in.key)) {
          self->state.inbox[in.key].gradient = in.tensor;
          self->state.inbox[in.key].gradient_made = in.made;
        }
        perform_effects(
            self, self->state.core.gradient_arrived(in.key.step, in.key.microbatch, in.key.chunk));
      },
      [self](const credit& in) {
        if (has_departed(self)) return;
        perform_effects(self, self->state.core.credit_arrived(in.on, in.key.step, in.key.microbatch,
                                                              in.key.chunk));
      },
      [self](const output_ready& output) { on_output_ready(self, output); },
      [self](const work_done& outcome) { on_work_done(self, outcome); },
      [self](const losses_known& from) { on_losses_known(self, from); },
      [self](const gradients_ready& from) { on_gradients_ready(self, from); },
      [self](const step_undone& what) { on_step_undone(self, what); },
      [self](const tied_gradient& from) { on_tied_gradient(self, from); },
      [self](const replica_gradients& from) { on_replica_gradients(self, from); },
      [self](const replica_statistics& from) { on_replica_statistics(self, from); },
      [self](const replica_parameters& from) { on_replica_parameters(self, from); },
      [self](const gradient_final& what) { on_gradient_final(self, what); },
      [self](const replicas_added& what) { on_replicas_added(self, what); },
      [self](const replicas_gathered& what) { on_replicas_gathered(self, what); },
      [self](const load_weights& from) {
        return answering(self->state.name, [&] { return on_load(self, from); });
      },
      [self](const read_weights& what) {
        return answering(self->state.name, [&] { return on_read(self, what); });
      },
      [self](const load_files& from) {
        return answering(self->state.name, [&] { return on_load_files(self, from); });
      },
      [self](const read_outputs& what) { return on_read_outputs(self, what); },
      [self](const load_state& from) { return self->delegate(self->state.end.optimizer, from); },
      [self](const read_state& order) { return self->delegate(self->state.end.optimizer, order); },
      [self](const read_dry_run& what) { return on_read_dry_run(self, what); },
      [self](const take_version& what) { return on_take_version(self, what); },
      [self](const adopt_version& what) {
        return answering(self->state.name, [&] { return on_adopt_version(self, what); });
      },
      [self](const write_slice& what) {
        return answering(self->state.name, [&] { return on_write_slice(self, what); });
      },
      [self](const replace_neighbour& what) { return on_replace_neighbour(self, what); },
      [self](const resume_edges&) {
        perform_effects(self, self->state.core.resume());
        return acknowledged{};
      },
      [self](const buffers_copied& from) { on_buffers_copied(self, from); },
  };
}

}  // namespace

void finish_step(stage_pointer self, const step_key& key) {
  const auto& order = self->state.steps.at(key).order;
  if (!order.dry_run && self->state.end.core.is_between_updates())
    store_version_of(self, order.number);
  answer(self, key);
  perform_effects(self, self->state.core.update_done(key));
}

stage_actor spawn_stage(caf::actor_system& system, stage_parts parts) {
  return system.spawn(stage_behavior, std::make_shared<stage_parts>(std::move(parts)));
}

}  // namespace troupe::actors
