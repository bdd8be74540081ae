#include "actors/stage/mirror/versions.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/base/same_actor.hpp"
#include "actors/saving/slice_writer.hpp"
#include "actors/stage/mirror/version_updates.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/verify/reference.hpp"
#include "messages/base/log.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::actors {
namespace {

/// No step can be voted on any more, for that needs its predecessor's version to be kept.
void cannot_store(stage_pointer self, const error& why) {
  auto& state = self->state;
  state.versions.problem = why;
  // At the end of a run the keepers may be gone before the last version is there.
  if (state.steps.empty() && state.versions.waiting.empty())
    return log::debug(state.name + ": its last version is not kept: " + why.text);
  fail_all(self, why);
}

void perform(stage_pointer self, const stores_core::effects& effects);

/// After a keeper has stored something, or has left.
void look_who_waits(stage_pointer self) {
  auto& versions = self->state.versions;
  const auto is_over = [&](const auto& each) { return versions.stores.is_over(each.first); };
  std::erase_if(versions.kept, is_over);
  if (!versions.stores.is_stored()) return;
  versions.updates.made.clear();  // another keeper gets states
  for (const auto& [each, how] : std::exchange(versions.waiting, {})) each({});
}

void version_stored(stage_pointer self, const stores_core::store& what) {
  auto& versions = self->state.versions;
  if (!versions.stores.is_current(what.to)) return;
  versions.updates.forms.stored(what.to.place, what.step);
  perform(self, versions.stores.stored(what.to));
  look_who_waits(self);
}

/// Who has ordered the version, and would order another keeper, must not wait for that one.
void tell_of_lost_keeper(stage_pointer self, const error& why) {
  auto& waiting = self->state.versions.waiting;
  const auto told = std::ranges::stable_partition(
      waiting, [](const version_waiter& each) { return each.how == patience::for_another_keeper; });
  const std::vector<version_waiter> ended(told.begin(), told.end());
  waiting.erase(told.begin(), told.end());
  for (const auto& each : ended) each.what(tl::unexpected(why));
}

/// Another trainer might have gone on from it; this one does not need it.
void go_on_without_spare(stage_pointer self, std::size_t place, const error& why) {
  if (why.code != errc::peer_lost)  // else the trainer says it, once for all stages
    log::warning(self->state.name +
                 ": its versions are not kept for another trainer any more: " + why.text);
  auto& versions = self->state.versions;
  versions.stores.left(place);
  versions.updates.forms.replaced(place);  // nobody needs updates for its sake
  look_who_waits(self);
}

void not_stored(stage_pointer self, const stores_core::addressee& by, const error& why) {
  auto& versions = self->state.versions;
  if (!versions.stores.is_current(by)) return;
  if (is_same_actor(versions.keepers.at(by.place), versions.spare))
    return go_on_without_spare(self, by.place, why);
  // Its process was lost: the stage waits for another keeper in its place, if there may be one.
  if (self->state.replay.logs && why.code == errc::peer_lost) return tell_of_lost_keeper(self, why);
  cannot_store(self, why);
}

/// Why a keeper did not take something. One that has ended is lost: keepers end with their process,
/// and that may be known before its connections are.
error refusal_of_keeper(const caf::error& why) {
  auto told = from_caf(why);
  if (told.code == errc::unknown_target) told.code = errc::peer_lost;
  return told;
}

void send_piece(stage_pointer self, const stores_core::store& what, version_form form,
                const list_place& from);

/// A keeper that cannot compute a version, or computes other bits, gets its state.
void update_refused(stage_pointer self, const stores_core::store& what, const error& why) {
  if (why.code == errc::peer_lost) return not_stored(self, what.to, why);
  if (!self->state.versions.stores.is_current(what.to)) return;
  doubt_keeper(self->state, what.to.place, why);
  send_piece(self, what, version_form::state, {});
}

void send_piece(stage_pointer self, const stores_core::store& what, version_form form,
                const list_place& from) {
  auto& versions = self->state.versions;
  if (!versions.stores.is_current(what.to)) return;
  const bool is_update = form == version_form::update;
  const auto& list =
      is_update ? versions.updates.made.at(what.step).tensors : versions.kept.at(what.step);
  auto piece = cut_piece(list, from, {}, piece_tensors::shared);
  if (!piece) return cannot_store(self, piece.error());
  const auto& keeper = versions.keepers.at(what.to.place);
  const auto sent = [self, what, form, next = end_of(*piece),
                     last = piece->last](const acknowledged&) {
    last ? version_stored(self, what) : send_piece(self, what, form, next);
  };
  if (is_update)
    self->request(keeper, usual_deadlines.update, update_message(self->state, what.step, *piece))
        .then(sent, [self, what](const caf::error& why) {
          update_refused(self, what, refusal_of_keeper(why));
        });
  else
    self->request(keeper, usual_deadlines.transfer,
                  store_version{versions.stage, what.step, self->state.incarnation, *piece})
        .then(sent, [self, to = what.to](const caf::error& why) {
          not_stored(self, to, refusal_of_keeper(why));
        });
}

void perform(stage_pointer self, const stores_core::effects& effects) {
  for (const auto& each : effects)
    send_piece(self, each, choose_form(self->state, each.to.place, each.step), {});
}

/// Whether somebody waits to have the version of a step written.
bool is_slice_due(const stage_state& state, std::uint64_t step) {
  const auto& slice = state.versions.slice;
  return slice && slice->what.step == step;
}

/// Nothing is being copied any more.
void forget_halves(version_state& versions) {
  versions.copying = false;
  versions.shown.reset();
  versions.state.reset();
  versions.buffers.reset();
}

/// Of these tensors what the order has files for.
void write_version(stage_pointer self, engine::shown_tensors tensors) {
  auto& versions = self->state.versions;
  auto slice = std::exchange(versions.slice, std::nullopt);
  std::erase_if(tensors, [&what = slice->what](const auto& each) {
    return (optimizers::is_state_name(each->form().name) ? what.state : what.weights).empty();
  });
  versions.written.add(tensors);
  self->request(self->state.writer, usual_deadlines.write,
                store_slice{slice->what, std::move(tensors)})
      .then([answer = slice->answer](const slice_written& how) mutable { answer.deliver(how); },
            [answer = slice->answer](const caf::error& why) mutable { answer.deliver(why); });
}

/// Tensors that nobody changes.
engine::shown_tensors shown(const std::vector<engine::named_tensor>& copies) {
  return engine::snapshots_of(copies, engine::snapshot::elements::stay);
}

/// Has the version that is being copied written, once it is known what it has.
void write_shown(stage_pointer self) {
  auto& versions = self->state.versions;
  if (!versions.shown || !versions.buffers || !is_slice_due(self->state, versions.step)) return;
  auto all = *std::exchange(versions.shown, std::nullopt);  // can be read once
  std::ranges::move(shown(*versions.buffers), std::back_inserter(all));
  write_version(self, std::move(all));
}

/// Once both halves are there: the optimizer's, and the buffers of the work thread.
void send_version(stage_pointer self) {
  auto& versions = self->state.versions;
  if (!versions.state || !versions.buffers) return;
  complete_update(self->state, *versions.state, *versions.buffers);
  const auto made =
      std::make_shared<stage_version>(stage_version{versions.step, std::move(*versions.state)});
  std::ranges::move(*versions.buffers, std::back_inserter(made->tensors));
  forget_halves(versions);
  const bool is_wanted_again = is_slice_due(self->state, made->step);
  if (versions.keepers.empty() && is_wanted_again) return store_version_of(self, made->step);
  if (versions.keepers.empty()) return;
  versions.last = made;  // which the keeper beside the stage shares
  if (is_wanted_again) write_version(self, shown(made->tensors));
  versions.kept[made->step] = made->tensors;
  perform(self, versions.stores.copied(made->step));
}

void cannot_copy(stage_pointer self, const error& why) {
  auto& versions = self->state.versions;
  forget_halves(versions);
  if (is_slice_due(self->state, versions.step))
    std::exchange(versions.slice, std::nullopt)->answer.deliver(to_caf(why));
  if (!versions.keepers.empty()) cannot_store(self, why);
}

/// Whether the step whose version is wanted has not ended here.
bool is_under_way(const stage_state& state, std::uint64_t step) {
  return std::ranges::any_of(state.steps, [step](const auto& each) {
    const auto& order = each.second.order;
    return order.kind == engine::step_kind::training && !order.dry_run && order.number == step;
  });
}

}  // namespace

void store_version_of(stage_pointer self, std::uint64_t step, version_origin origin) {
  auto& state = self->state;
  auto& versions = state.versions;
  if (versions.keepers.empty() && !is_slice_due(state, step)) return;
  forget_halves(versions);
  begin_update(state, step, origin);
  versions.step = step;
  versions.copying = true;
  if (!versions.keepers.empty()) versions.stores.begin();
  post_work(state, {.kind = engine::work_kind::step_end, .step = step},
            [modules = modules_of(state), step, to = caf::actor_cast<stage_actor>(self)] {
              buffers_copied out{.step = step};
              for (auto* const module : modules)
                std::ranges::move(engine::copy_buffers(module->layers()),
                                  std::back_inserter(out.tensors));
              caf::anon_send(to, std::move(out));
            });
  self->request(state.end.optimizer, usual_deadlines.update,
                copy_state{.step = step,
                           .for_keepers = !versions.keepers.empty(),
                           .digested = versions.updates.making.has_value()})
      .then(
          [self](const state_copied& from) {
            self->state.versions.state = from.tensors;
            note_copy(self->state, from);
            send_version(self);
          },
          [self](const caf::error& why) { cannot_copy(self, from_caf(why)); });
}

void when_stored(stage_pointer self, std::function<void(const result<void>&)> what, patience how) {
  auto& versions = self->state.versions;
  if (versions.problem) return what(tl::unexpected(*versions.problem));
  if (versions.stores.is_stored()) return what({});
  versions.waiting.push_back({std::move(what), how});
}

caf::result<slice_written> on_write_slice(stage_pointer self, const write_slice& what) {
  auto& state = self->state;
  auto& versions = state.versions;
  if (!state.writer) {
    state.writer = spawn_slice_writer(self->system(), state.name);
    caf::actor_cast<caf::strong_actor_ptr>(self)->get()->attach_functor(
        [writer = state.writer] { caf::anon_send_exit(writer, caf::exit_reason::user_shutdown); });
  }
  if (auto before = std::exchange(versions.slice, std::nullopt))
    before->answer.deliver(to_caf(
        {errc::cancelled, state.name + ": another checkpoint is to be written before the step of "
                                       "this one is over"}));
  auto promise = self->make_response_promise<slice_written>();
  versions.slice = wanted_slice{what, promise};
  if (is_under_way(state, what.step)) return promise;
  if (versions.last && versions.last->step == what.step)
    write_version(self, shown(versions.last->tensors));
  else if (!versions.copying || versions.step != what.step)
    store_version_of(self, what.step);
  else
    write_shown(self);
  return promise;
}

void replace_keeper(stage_pointer self, const caf::strong_actor_ptr& lost,
                    const caf::strong_actor_ptr& by) {
  auto& versions = self->state.versions;
  for (std::size_t place = 0; place < versions.keepers.size(); ++place) {
    if (!is_same_actor(versions.keepers[place], lost)) continue;
    versions.keepers[place] = caf::actor_cast<keeper_actor>(by);
    versions.updates.forms.replaced(place);
    ask_keeper(self, place);
    perform(self, versions.stores.replaced(place));
  }
}

void on_buffers_copied(stage_pointer self, const buffers_copied& from) {
  auto& versions = self->state.versions;
  if (from.step != versions.step) return;
  versions.buffers = from.tensors;
  write_shown(self);
  send_version(self);
}

void on_state_shown(stage_pointer self, const state_shown& from) {
  auto& versions = self->state.versions;
  if (from.step != versions.step) return;
  versions.shown = from.tensors;
  write_shown(self);
}

void keep_written(stage_state& state) {
  state.versions.updates.was_written = true;
  state.versions.written.make_own([](const at::Tensor& tensor) { return tensor.clone(); });
}

caf::result<acknowledged> on_take_version(stage_pointer self, const take_version& what) {
  const auto& state = self->state;
  const auto within_step =
      to_caf({errc::bad_config, state.name + ": a version cannot be taken within a step"});
  if (!state.steps.empty()) return within_step;
  auto promise = self->make_response_promise<acknowledged>();
  // The version of the step before may still be on its way to a keeper.
  const auto take = [=](const result<void>& before) mutable {
    if (!before) return static_cast<void>(promise.deliver(to_caf(before.error())));
    if (!self->state.steps.empty() || !self->state.versions.stores.is_stored())
      return static_cast<void>(promise.deliver(within_step));
    store_version_of(self, what.step);
    const auto answer = [promise](const result<void>& all) mutable {
      all ? promise.deliver(acknowledged{}) : promise.deliver(to_caf(all.error()));
    };
    when_stored(self, answer, patience::for_these_keepers);
  };
  when_stored(self, take, patience::for_these_keepers);
  return promise;
}

}  // namespace troupe::actors
