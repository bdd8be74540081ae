#include "actors/optimizer/optimizer_actor.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "actors/detached.hpp"
#include "actors/errors.hpp"
#include "actors/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/base/torch_error.hpp"
#include "optimizers/gradients.hpp"
#include "optimizers/saved_state.hpp"

namespace troupe::actors {
namespace {

using optimizers::gradient_list;
using std::chrono::steady_clock;

/// How long the other stages may take to finish the step.
constexpr std::chrono::minutes norm_deadline{10};

struct optimizer_state {
  std::string name;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;  ///< Of the parameters.
  optimizers::optimizer optimizer;
  std::vector<optimizers::param_group> groups;
  update_rules rules;
  optimizers::gradient_accumulator sums;
  optimizers::state slots;
  std::uint64_t heard = 0;  ///< Steps whose gradients have come.
  param_version version;
  norm_actor norm;  ///< Where the gradients are clipped by their global norm.
  stage_id stage;
  std::shared_ptr<engine::activity> doing;
  tensor_assembly loading;  ///< A state that is on its way.
  optimizers::named_tensors loaded;
};

using self_pointer = optimizer_actor::stateful_pointer<optimizer_state>;

/// Gradients on their way into an update.
struct pending_update {
  std::uint64_t number = 0;  ///< Of the step that completed it.
  double learning_rate = 0;
  gradient_list gradients;
};

/// Runs a part of an update: torch's exceptions end here.
template <class Body>
auto guarded(const Body& body) -> decltype(body()) try {
  const at::NoGradGuard no_grad;
  return body();
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, engine::reason_of(problem));
}

caf::error refusal(const optimizer_state& state, const error& why) {
  return to_caf({why.code, state.name + ": optimizer '" + state.optimizer.name + "': " + why.text});
}

/// The gradients that an update is due for, clipped by value; nothing while more steps are to come.
result<std::optional<gradient_list>> gather(optimizer_state& state, const apply_gradients& order) {
  if (order.update != state.heard + 1)
    return fail(errc::stale, "update " + std::to_string(order.update) + " after update " +
                                 std::to_string(state.heard));
  ++state.heard;
  if (order.left_out) {
    state.sums.leave_out();
    return std::nullopt;
  }
  auto due = state.sums.add(order.gradients);
  if (due && *due && state.rules.clip_value > 0)
    return optimizers::clipped(**due, state.rules.clip_value);
  return due;
}

result<void> step(optimizer_state& state, const pending_update& update) {
  auto stepped = optimizers::step_groups(state.optimizer, state.groups, state.parameters,
                                         update.gradients, state.slots, update.learning_rate,
                                         state.version.value + 1, state.names);
  if (stepped) ++state.version.value;
  return stepped;
}

result<void> clip_and_step(optimizer_state& state, pending_update& update, double squares) {
  const auto factor = optimizers::clip_factor(squares, state.rules.clip_norm);
  if (!factor) return tl::unexpected(factor.error());
  if (*factor < 1) update.gradients = optimizers::scaled(update.gradients, *factor);
  return step(state, update);
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

engine::work_item update_of(std::uint64_t number) {
  return {.kind = engine::work_kind::update, .step = number};
}

/// Asks for the norm over all stages; the update waits for it.
caf::result<applied> clip_with_others(self_pointer self, pending_update update,
                                      steady_clock::time_point begin) {
  auto& state = self->state;
  if (!state.norm)
    return refusal(state, {errc::bad_config, "clip_norm needs a pipeline that adds up the norm"});
  auto squares = guarded([&]() -> result<std::vector<double>> {
    return optimizers::squares_of_each(update.gradients);
  });
  if (!squares) return refusal(state, squares.error());
  const double busy_s = seconds_since(begin);
  auto promise = self->make_response_promise<applied>();
  self->request(state.norm, norm_deadline,
                norm_part{update.number, state.stage, std::move(*squares)})
      .then(
          [self, promise, busy_s, update = std::move(update)](const norm_total& total) mutable {
            const engine::activity_scope scope(*self->state.doing, update_of(update.number));
            const auto again = steady_clock::now();
            const auto stepped =
                guarded([&] { return clip_and_step(self->state, update, total.squares); });
            if (stepped)
              promise.deliver(applied{self->state.version, busy_s + seconds_since(again)});
            else
              promise.deliver(refusal(self->state, stepped.error()));
          },
          [self, promise](const caf::error& why) mutable {
            promise.deliver(refusal(self->state, from_caf(why)));
          });
  return promise;
}

caf::result<applied> on_apply(self_pointer self, const apply_gradients& order) {
  auto& state = self->state;
  const engine::activity_scope scope(*state.doing, update_of(order.update));
  const auto begin = steady_clock::now();
  auto due = guarded([&] { return gather(state, order); });
  if (!due) return refusal(state, due.error());
  if (*due) {
    pending_update update{order.update, order.learning_rate, std::move(**due)};
    if (state.rules.clip_norm > 0) return clip_with_others(self, std::move(update), begin);
    if (auto stepped = guarded([&] { return step(state, update); }); !stepped)
      return refusal(state, stepped.error());
  }
  return applied{state.version, seconds_since(begin)};
}

caf::result<done> on_load(self_pointer self, const load_state& from) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) {
    return to_caf({why.code, state.name + ": " + why.text});
  };
  if (from.piece.begin == list_place{}) {
    state.loading = tensor_assembly();
    state.loaded.clear();
  }
  if (auto added = state.loading.add(from.piece); !added) return refuse(added.error());
  for (auto& [name, tensor] : state.loading.take()) state.loaded.emplace_back(name, tensor);
  if (!state.loading.complete()) return done{};
  auto slots = optimizers::from_named(std::exchange(state.loaded, {}), state.names);
  if (!slots) return refuse(slots.error());
  state.slots = std::move(*slots);
  return done{};
}

caf::result<kept_state> on_read(self_pointer self, const read_state& what) {
  std::vector<engine::named_tensor> all;
  for (auto& [name, tensor] : optimizers::to_named(self->state.slots, self->state.names))
    all.push_back({name, tensor});
  auto piece = cut_piece(all, what.from, what.most, piece_tensors::copied);
  if (!piece) return to_caf({piece.error().code, self->state.name + ": " + piece.error().text});
  return kept_state{std::move(*piece)};
}

optimizer_actor::behavior_type optimizer_behavior(
    self_pointer self, const std::shared_ptr<optimizer_parts>& given,
    const std::shared_ptr<std::vector<optimizers::param_group>>& groups) {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(given->threads);
  auto& state = self->state;
  state.name = std::move(given->name);
  for (auto& parameter : given->parameters) {
    state.parameters.push_back(parameter.tensor);
    state.names.push_back(std::move(parameter.name));
  }
  state.optimizer = std::move(given->optimizer);
  state.groups = std::move(*groups);
  state.rules = std::move(given->rules);
  state.doing = given->doing ? std::move(given->doing) : std::make_shared<engine::activity>();
  state.sums = optimizers::gradient_accumulator(state.rules.accumulate);
  const auto name = state.name + ": optimizer '" + state.optimizer.name + "'";
  end_when_thrown(*self, name);
  return {
      [self, name](const apply_gradients& order) {
        return answering(name, [&] { return on_apply(self, order); });
      },
      [self](const share_norm& with) {
        self->state.norm = caf::actor_cast<norm_actor>(with.norm);
        self->state.stage = with.stage;
      },
      [self, name](const load_state& from) {
        return answering(name, [&] { return on_load(self, from); });
      },
      [self, name](const read_state& what) {
        return answering(name, [&] { return on_read(self, what); });
      },
  };
}

}  // namespace

result<optimizer_actor> spawn_optimizer(caf::actor_system& system, optimizer_parts parts) {
  std::vector<optimizers::group_rule> rules;
  for (const auto& text : parts.rules.groups) {
    auto rule = optimizers::parse_group(parts.optimizer, text);
    if (!rule) return tl::unexpected(rule.error());
    rules.push_back(std::move(*rule));
  }
  std::vector<std::string> names;
  for (const auto& parameter : parts.parameters) names.push_back(parameter.name);
  auto groups = optimizers::make_groups(parts.optimizer, parts.options, rules, names);
  if (!groups) return tl::unexpected(groups.error());
  return spawn_detached(system, "an optimizer", optimizer_behavior,
                        std::make_shared<optimizer_parts>(std::move(parts)),
                        std::make_shared<std::vector<optimizers::param_group>>(std::move(*groups)));
}

}  // namespace troupe::actors
