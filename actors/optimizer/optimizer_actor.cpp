#include "actors/optimizer/optimizer_actor.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/recovery/repeated_update.hpp"
#include "actors/transfer/pieces.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/base/torch_error.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/training/gradients.hpp"
#include "optimizers/training/saved_state.hpp"
#include "optimizers/training/state_copy.hpp"

namespace troupe::actors {
namespace {

using std::chrono::steady_clock;

struct optimizer_state {
  std::string name;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;  ///< Of the parameters.
  optimizers::optimizer optimizer;
  std::vector<optimizers::param_group> groups;
  optimizers::state slots;
  std::uint64_t last_step = 0;  ///< That completed an update.
  param_version version;
  std::shared_ptr<engine::activity> doing;
  std::shared_ptr<const engine::device_streams> streams;
  std::shared_ptr<messages::shared_memory> memory;
  tensor_assembly loading;  ///< A state that is on its way.
  optimizers::named_tensors loaded;
  std::optional<std::set<std::string>> own;  ///< Parameters whose state is kept; nullopt: all.
  engine::unread_snapshots shown;
};

using optimizer_pointer = optimizer_actor::stateful_pointer<optimizer_state>;

/// Runs an update: torch's exceptions end here.
template <class Body>
auto without_throwing(const Body& body) -> decltype(body()) try {
  const at::NoGradGuard no_grad;
  return body();
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, engine::reason_of(problem));
}

/// "stage-0: optimizer 'adam'"
std::string title_of(const optimizer_state& state) {
  return state.name + ": optimizer '" + state.optimizer.name + "'";
}

caf::error refusal(const optimizer_state& state, const error& why) {
  return to_caf(error_about(title_of(state), why));
}

/// Whatever an optimizer did to count up a parameter's version: who keeps copies of it goes by
/// that.
void count_versions(optimizer_state& state, const apply_gradients& order) {
  for (std::size_t i = 0; i < order.gradients.size(); ++i)
    if (order.gradients[i]) state.parameters[i].unsafeGetTensorImpl()->bump_version();
}

result<void> step(optimizer_state& state, const apply_gradients& order) {
  if (order.step <= state.last_step)
    return fail(errc::stale, "the update of step " + std::to_string(order.step) +
                                 " after that of step " + std::to_string(state.last_step));
  state.last_step = order.step;
  state.shown.make_own(optimizers::copy_past_caches);
  const auto gradients =
      order.scale < 1 ? optimizers::scaled(order.gradients, order.scale) : order.gradients;
  auto stepped = optimizers::step_groups(state.optimizer, state.groups, state.parameters, gradients,
                                         state.slots, order.learning_rate, state.version.value + 1,
                                         state.names);
  if (order.gradients.size() == state.parameters.size()) count_versions(state, order);
  if (stepped) ++state.version.value;
  return stepped;
}

caf::result<gradients_applied> on_apply(optimizer_pointer self, const apply_gradients& order) {
  auto& state = self->state;
  const engine::activity_scope scope(*state.doing,
                                     {.kind = engine::work_kind::update, .step = order.step});
  const auto on_device = state.streams->computing();
  const auto begin = steady_clock::now();
  if (auto stepped = without_throwing([&] { return step(state, order); }); !stepped)
    return refusal(state, stepped.error());
  return gradients_applied{state.version,
                           std::chrono::duration<double>(steady_clock::now() - begin).count()};
}

/// State that came over the host lies where its parameters do; numbers stay.
void to_devices(optimizers::state& slots, const std::vector<at::Tensor>& parameters) {
  for (auto& [name, tensors] : slots)
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& each = tensors[i];
      const bool is_number = each.defined() && each.dim() == 0 && each.scalar_type() == at::kDouble;
      if (each.defined() && !is_number) each = each.to(parameters[i].device());
    }
}

caf::result<acknowledged> on_load(optimizer_pointer self, const load_state& from) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { return to_caf(error_about(state.name, why)); };
  if (from.piece.begin == list_place{}) {
    state.loading = tensor_assembly();
    state.loaded.clear();
  }
  if (auto added = state.loading.add(from.piece); !added) return refuse(added.error());
  for (auto& [name, tensor] : state.loading.take())
    if (!state.own || state.own->contains(optimizers::parameter_of(name)))
      state.loaded.emplace_back(name, tensor);
  if (!state.loading.complete()) return acknowledged{};
  auto slots = optimizers::from_named(std::exchange(state.loaded, {}), state.names);
  if (!slots) return refuse(slots.error());
  const auto on_device = state.streams->computing();
  to_devices(*slots, state.parameters);
  state.slots = std::move(*slots);
  return acknowledged{};
}

result<void> replace(optimizer_state& state, const replace_parameters& by) {
  if (by.values.size() != state.parameters.size())
    return fail(errc::bad_frame, std::to_string(by.values.size()) + " values for " +
                                     std::to_string(state.parameters.size()) + " parameters");
  state.shown.make_own(optimizers::copy_past_caches);
  for (std::size_t i = 0; i < by.values.size(); ++i) {
    if (!by.values[i]) continue;
    if (by.values[i]->sizes() != state.parameters[i].sizes())
      return fail(errc::bad_frame, "a value of another shape than parameter " + std::to_string(i));
    state.parameters[i].detach().copy_(*by.values[i]);
  }
  return {};
}

caf::result<acknowledged> on_replace(optimizer_pointer self, const replace_parameters& by) {
  // Another kind of update than those above, in time too: its size tells them apart.
  const engine::activity_scope scope(*self->state.doing,
                                     {.kind = engine::work_kind::update, .size = by.values.size()});
  const auto on_device = self->state.streams->computing();
  if (auto done = without_throwing([&] { return replace(self->state, by); }); !done)
    return refusal(self->state, done.error());
  return acknowledged{};
}

caf::result<kept_state> on_read(optimizer_pointer self, const read_state& what) {
  std::vector<engine::named_tensor> all;
  for (auto& [name, tensor] : optimizers::to_named(self->state.slots, self->state.names))
    all.push_back({name, tensor});
  if (what.forms) return kept_state{forms_of(all, what.from, what.most)};
  const auto on_device = self->state.streams->computing();
  auto piece = cut_piece(all, what.from, what.most, piece_tensors::copied);
  if (!piece) return to_caf(error_about(self->state.name, piece.error()));
  return kept_state{std::move(*piece)};
}

/// All that a version has of parameters and state. Each parameter is followed by what belongs to
/// it, so that the files of both grow together.
std::vector<engine::named_tensor> parts_of_version(const optimizer_state& state) {
  std::unordered_map<std::string, std::vector<engine::named_tensor>> kept;  // by parameter
  for (auto& [name, tensor] : optimizers::to_named(state.slots, state.names))
    kept[optimizers::parameter_of(name)].push_back({name, tensor});
  std::vector<engine::named_tensor> all;
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    all.push_back({state.names[i], state.parameters[i].detach()});
    std::ranges::move(kept[state.names[i]], std::back_inserter(all));
  }
  return all;
}

caf::result<state_copied> on_copy(optimizer_pointer self, const copy_state& how) {
  auto& state = self->state;
  const at::NoGradGuard no_grad;
  const auto on_device = state.streams->computing();
  const lendable_tensors lendable(how.for_keepers ? state.memory : nullptr);
  state_shown shown{.step = how.step};
  state_copied copied{.updates = state.version.value};
  const auto parts = parts_of_version(state);
  std::vector<at::Tensor> here;
  for (const auto& each : parts) here.push_back(each.tensor);
  here = engine::to_host(here);  // all of them by one wait
  for (std::size_t i = 0; i < parts.size(); ++i) {
    using enum engine::snapshot::elements;
    copied.tensors.push_back({parts[i].name, here[i]});
    shown.tensors.push_back(std::make_shared<engine::snapshot>(
        copied.tensors.back(), parts[i].tensor.is_cpu() ? may_change : stay));
  }
  state.shown.add(shown.tensors);
  caf::anon_send(caf::actor_cast<stage_actor>(self->current_sender()), shown);
  if (!how.for_keepers) return state_copied{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].tensor.is_cpu()) continue;
    auto& copy = copied.tensors[i].tensor;
    copy = optimizers::copy_past_caches(parts[i].tensor);
    shown.tensors[i]->make_own([&](const at::Tensor&) { return copy; });
  }
  if (how.digested) copied.digest = digest_of(copied.tensors);
  return copied;
}

optimizer_actor::behavior_type optimizer_behavior(
    optimizer_pointer self, const std::shared_ptr<optimizer_parts>& given,
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
  state.streams = given->streams ? std::move(given->streams)
                                 : std::make_shared<engine::device_streams>(at::kCPU);
  state.memory = std::move(given->memory);
  state.doing = given->doing ? std::move(given->doing) : std::make_shared<engine::activity>();
  const auto title = title_of(state);
  end_when_thrown(*self, title);
  const guarding guarded(self, title);
  return {
      guarded(on_apply),
      guarded(on_replace),
      [self](const keep_state_of& which) {
        self->state.own.emplace(which.parameters.begin(), which.parameters.end());
      },
      guarded(on_load),
      guarded(on_read),
      guarded(on_copy),
  };
}

}  // namespace

result<optimizer_actor> spawn_optimizer(caf::actor_system& system, optimizer_parts parts) {
  std::vector<std::string> names;
  for (const auto& parameter : parts.parameters) names.push_back(parameter.name);
  auto groups = optimizers::make_groups(parts.optimizer, parts.options, parts.groups, names);
  if (!groups) return tl::unexpected(groups.error());
  return spawn_detached(system, "an optimizer", optimizer_behavior,
                        std::make_shared<optimizer_parts>(std::move(parts)),
                        std::make_shared<std::vector<optimizers::param_group>>(std::move(*groups)));
}

}  // namespace troupe::actors
