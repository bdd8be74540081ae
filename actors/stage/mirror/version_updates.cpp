#include "actors/stage/mirror/version_updates.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/base/same_actor.hpp"
#include "actors/recovery/repeated_update.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::actors {
namespace {

using engine::named_tensor;

/// Whether the keeper has the stage's own tensors, or borrows them.
bool shares_memory(const stage_state& state, const keeper_described& keeper) {
  if (keeper.machine != messages::this_machine()) return false;
  // Machines without a name may be two, of which the keeper then gets states.
  return keeper.process == ::getpid() || (!keeper.machine.empty() && state.memory);
}

void keeper_known(stage_state& state, std::size_t place, const keeper_described& keeper) {
  if (shares_memory(state, keeper)) return;
  state.versions.updates.forms.is_apart(place);
  if (!state.end.repeatable)
    log::debug(state.name +
               ": its versions travel whole, for other CPUs may not repeat its optimizer's bits");
}

/// Whether every CPU updates the parameter by this gradient to the same bits (see
/// optimizers::optimizer).
bool is_repeatable(const at::Tensor& parameter, const at::Tensor& gradient) {
  const auto type = parameter.scalar_type();
  return (type == at::kFloat || type == at::kDouble) && gradient.scalar_type() == type &&
         parameter.is_non_overlapping_and_dense() && gradient.layout() == at::kStrided;
}

}  // namespace

void ask_keeper(stage_pointer self, std::size_t place) {
  const auto keeper = self->state.versions.keepers.at(place);
  self->request(keeper, usual_deadlines.join, describe_keeper{})
      .then(
          [self, place, keeper](const keeper_described& answer) {
            auto& state = self->state;
            const auto& keepers = state.versions.keepers;
            if (place < keepers.size() && is_same_actor(keepers[place], keeper))
              keeper_known(state, place, answer);
          },
          [self](const caf::error& why) {  // it gets states, if it lives
            log::debug(self->state.name + ": a keeper of its versions does not say where it is: " +
                       from_caf(why).text);
          });
}

void note_update(stage_state& state, const run_stage& order, double scale) {
  auto& updates = state.versions.updates;
  updates.noted = noted_update{order.number, order.learning_rate, scale, {}};
  if (updates.forms.wants_updates()) updates.noted->gradients = state.end.gradients;
}

void begin_update(stage_state& state, std::uint64_t step, version_origin origin) {
  auto& versions = state.versions;
  auto& updates = versions.updates;
  updates.making.reset();
  const auto noted = std::exchange(updates.noted, std::nullopt);
  // An update that such a version has in the middle of its step is not made after it.
  const bool is_within_step = origin != version_origin::step && noted;
  const bool written = std::exchange(updates.was_written, is_within_step);
  if (origin != version_origin::step || written || !versions.last || versions.last->step >= step ||
      !updates.forms.wants_updates())
    return;
  version_update made{.terms = *state.end.repeatable, .choice = {.after = versions.last->step}};
  if (noted) {
    if (noted->step != step || !noted->gradients) return;
    made.terms.learning_rate = noted->learning_rate;
    made.terms.scale = noted->scale;
    for (std::size_t i = 0; i < noted->gradients->size(); ++i) {
      const auto& gradient = noted->gradients->at(i);
      if (!gradient || !gradient->defined()) continue;
      const auto& [name, parameter] = state.end.parameters.at(i);
      if (!is_repeatable(parameter, *gradient)) return;
      const bool is_dense = gradient->is_non_overlapping_and_dense();
      made.tensors.push_back({gradient_name(name), is_dense ? *gradient : gradient->contiguous()});
    }
  }
  updates.making = std::move(made);
}

void note_copy(stage_state& state, const state_copied& from) {
  auto& making = state.versions.updates.making;
  if (!making) return;
  making->digest = from.digest;
  making->terms.number = from.updates;
}

void complete_update(stage_state& state, const std::vector<named_tensor>& half,
                     const std::vector<named_tensor>& buffers) {
  auto& versions = state.versions;
  auto making = std::exchange(versions.updates.making, std::nullopt);
  if (!making) return;
  // What other replicas have updated.
  for (std::size_t i = 0; i < state.end.parameters.size(); ++i) {
    if (state.end.replicas.owns(i)) continue;
    const auto& name = state.end.parameters[i].name;
    making->tensors.push_back(*std::ranges::find(half, name, &named_tensor::name));
  }
  making->tensors.insert(making->tensors.end(), buffers.begin(), buffers.end());
  making->digest += digest_of(buffers);
  making->choice.state_bytes = engine::bytes_of(half) + engine::bytes_of(buffers);
  making->choice.update_bytes = engine::bytes_of(making->tensors);
  versions.updates.made.insert_or_assign(versions.step, std::move(*making));
}

version_form choose_form(stage_state& state, std::size_t place, std::uint64_t step) {
  auto& updates = state.versions.updates;
  const auto found = updates.made.find(step);
  if (found == updates.made.end() || !updates.forms.may_have_updates(place))
    return version_form::state;
  const auto& of = found->second.choice;
  const auto form = updates.forms.choose(place, of);
  if (std::exchange(updates.told, form) != form) {
    const auto gradients = std::to_string(of.update_bytes) + " bytes of gradients and buffers";
    const auto whole = std::to_string(of.state_bytes) + " bytes of state";
    log::debug(state.name + ": a version travels to its keeper as " +
               (form == version_form::update ? gradients + " instead of " + whole
                                             : whole + " instead of " + gradients));
  }
  return form;
}

store_update update_message(const stage_state& state, std::uint64_t step,
                            const tensor_piece& piece) {
  const auto& update = state.versions.updates.made.at(step);
  return {.stage = state.versions.stage,
          .step = step,
          .incarnation = state.incarnation,
          .after = update.choice.after,
          .terms = update.terms,
          .digest = update.digest,
          .piece = piece};
}

void doubt_keeper(stage_state& state, std::size_t place, const error& why) {
  const bool for_good = why.code == errc::bad_data || why.code == errc::bad_config ||
                        why.code == errc::handler_failed;
  state.versions.updates.forms.refused(place, for_good);
  if (!for_good) log::debug(state.name + ": a version travels whole: " + why.text);
  if (for_good) log::warning(state.name + ": its versions travel whole from now on: " + why.text);
}

}  // namespace troupe::actors
