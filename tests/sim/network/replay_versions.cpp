#include <algorithm>
#include <optional>
#include <utility>

#include "tests/sim/replay_company.hpp"

// The versions of stages: how they come to their keepers, whole or as what makes them of the ones
// before, in one message or in several.

namespace troupe::tests {

using actors::version_form;

namespace {

constexpr std::uint64_t numbers_of_version = 3;

/// A version as it travels. Those of two versions do not fit each other.
number_list numbers_of(std::uint64_t weights) {
  number_list all{weights};
  for (std::uint64_t i = 1; i < numbers_of_version; ++i) all.push_back(mix({weights, i}));
  return all;
}

/// Of a step that was left out, or applied with what was accumulated and the scale.
number_list update_of(const std::optional<number_list>& applied) {
  return applied ? number_list{1, applied->at(0), applied->at(1)} : number_list{0, 0, 0};
}

/// Of a step; empty where there is no version of it.
number_list numbers_kept(const actors::kept_versions_core<number_assembly>& versions,
                         std::uint64_t step) {
  const auto there = versions.at(step);
  return there ? **there : number_list();
}

std::uint64_t updated(std::uint64_t weights, const number_list& update) {
  return update.at(0) == 0 ? weights : mix({weights, update.at(1), update.at(2)});
}

}  // namespace

// A stage.

actors::version_forms_core replay_company::forms_of(std::uint32_t place) const {
  const auto& beside = beside_[place];
  const std::size_t others = (beside.stage ? 1U : 0U) + (beside.trainer ? 1U : 0U);
  actors::version_forms_core made(1 + others, options_.computes_versions && !options_.shares_state);
  if (beside.stage) made.is_apart(1);
  if (options_.outlives) made.is_apart(others);
  return made;
}

/// The stage is about to be updated.
void replay_company::note_update(process& at, std::uint64_t scale) {
  at.noted = at.forms.wants_updates() ? number_list{at.accumulated, scale} : number_list();
}

/// What makes the version of a step of the one before; nothing where it is not made so, or nobody
/// wants it.
std::optional<replay_company::version_update> replay_company::begin_update(process& at,
                                                                           std::uint64_t number,
                                                                           bool by_step) {
  const auto noted = std::exchange(at.noted, std::nullopt);
  if (!by_step || !at.last_version || *at.last_version >= number || !at.forms.wants_updates())
    return std::nullopt;
  if (noted && noted->empty()) return std::nullopt;
  return version_update{*at.last_version, update_of(noted)};
}

void replay_company::make_version(process& at, std::uint64_t number, bool by_step) {
  at.stores.begin();
  after(a_delay(), [this, who = at.self, number, weights = at.weights,
                    update = begin_update(at, number, by_step)] {
    auto* const there = this->at(who);
    if (there == nullptr) return;
    there->kept[number] = weights;
    there->last_version = number;
    if (update) there->updates.insert_or_assign(number, *update);
    store(*there, there->stores.copied(number));
  });
}

version_form replay_company::form_of(const process& at, const actors::stores_core::store& what) {
  const auto found = at.updates.find(what.step);
  if (found == at.updates.end()) return version_form::state;
  const std::uint64_t saved = mix({at.self.stage, what.step}) % 4 == 0 ? 0U : 1U;
  return at.forms.choose(what.to.place, {.after = found->second.after,
                                         .state_bytes = numbers_of_version,
                                         .update_bytes = numbers_of_version - saved});
}

void replay_company::store(process& at, const actors::stores_core::effects& what) {
  for (const auto& each : what) send_piece(at, each, form_of(at, each), 0);
}

void replay_company::send_piece(process& at, const actors::stores_core::store& what,
                                version_form form, std::uint64_t begin) {
  if (!at.stores.is_current(what.to)) return;
  const auto stage = at.self.stage;
  const auto& other = beside_[stage].stage;
  const bool is_here = what.to.place == (other ? 2U : 1U);
  const auto keeper = other && what.to.place == 1 ? static_cast<std::uint32_t>(*other) : stage;
  sent_version sent{.of = at.self,
                    .what = what,
                    .form = form,
                    .digest = at.kept.at(what.step),
                    .from = {stage, at.keepers[stage]},
                    .there = is_here ? trainer() : process_id{keeper, at.keepers[keeper]}};
  if (has_lost(sent.from, sent.there)) return;  // until there is another keeper
  const bool is_update = form == version_form::update;
  if (is_update && doubted_.contains({sent.of, sent.there}))
    fault("a keeper that computes other bits is sent an update again");
  if (is_update) sent.after = at.updates.at(what.step).after;
  const auto list = is_update ? at.updates.at(what.step).list : numbers_of(sent.digest);
  sent.piece = cut_piece(list, begin, options_.in_pieces ? 1 : list.size());
  // Between two processes everything keeps its order, whichever actors it is from. Of one that
  // has ended the last of it may come, but not once another one is in its place.
  auto& until = told_keepers_[{sent.from, sent.there}];
  until = std::max(until + 1, now_ + a_delay());
  agenda_.emplace(until, [this, sent, is_here] {
    const auto& from = sent.from;
    const bool is_gone = !keepers_.contains(from);
    if (is_gone && from != holder(from.stage)) return;
    if (is_gone && dead_.contains(from.stage) && below(2) == 0) return;
    carry(from, sent.there, [this, sent, is_here] {
      if (is_here) return keep_piece(left_.kept.of(sent.of.stage), sent);
      if (const auto found = keepers_.find(sent.there); found != keepers_.end())
        keep_piece(found->second[sent.of.stage], sent);
    });
  });
}

void replay_company::piece_answered(process& at, const sent_version& sent,
                                    const std::optional<error>& refusal) {
  if (refusal) return piece_refused(at, sent, *refusal);
  if (!sent.piece.last)
    return send_piece(at, sent.what, sent.form, sent.piece.begin + sent.piece.parts.size());
  if (sent.form == version_form::update) ++counts_.computed;
  stored(at, sent.what);
}

/// Only a stage that was replaced is refused for good.
void replay_company::piece_refused(process& at, const sent_version& sent, const error& why) {
  const auto& to = sent.what.to;
  if (!at.stores.is_current(to)) return;
  if (sent.form == version_form::update) {
    const bool is_odd = why.code == errc::bad_data;
    if (!is_odd && why.code != errc::stale) fault("an update is refused: " + why.text);
    if (is_odd) doubted_.emplace(sent.of, sent.there);
    if (is_odd) ++counts_.other_bits;
    at.forms.refused(to.place, is_odd);
    return send_piece(at, sent.what, version_form::state, 0);
  }
  ++counts_.refused;
  if (why.code != errc::stale || at.self == now_of(at.self.stage))
    fault("the stage that has a place cannot store its version: " + why.text);
}

void replay_company::stored(process& at, const actors::stores_core::store& what) {
  if (at.stores.is_current(what.to)) at.forms.stored(what.to.place, what.step);
  store(at, at.stores.stored(what.to));
  if (!at.stores.is_stored()) return;
  at.updates.clear();  // another keeper gets states
  for (const auto& each : std::exchange(at.when_stored, {})) each();
  if (is_starting_) resume_run();
}

/// Another keeper of another stage is there, which gets states until it is known that it shares no
/// memory with this one.
void replay_company::keeper_moved(process& at) {
  at.forms.replaced(1);
  if (options_.computes_versions)
    after(a_delay(), [this, who = at.self, stage = *beside_[at.self.stage].stage,
                      start = at.keepers[*beside_[at.self.stage].stage]] {
      auto* const there = this->at(who);
      if (there != nullptr && there->keepers[stage] == start) there->forms.is_apart(1);
    });
  store(at, at.stores.replaced(1));
}

// A keeper.

void replay_company::keep_piece(keeper_versions& versions, const sent_version& sent) {
  const auto step = sent.what.step;
  const actors::version_name of{step, options_.names_senders ? sent.of.start : 0U};
  const auto before = numbers_kept(versions, step);
  const auto taken = sent.form == version_form::update ? compute_version(versions, of, sent)
                                                       : versions.add(of, sent.piece);
  const auto now = numbers_kept(versions, step);
  if (!before.empty() && !now.empty() && before != now)
    fault("a stage is stored that is not what it was before");
  if (!now.empty() && now != numbers_of(now.front())) fault("a version is mixed of several");
  const auto refusal = taken ? std::nullopt : std::optional(taken.error());
  after(a_delay(), [this, sent, refusal] {
    carry(sent.there, sent.from, [this, sent, refusal] {
      if (auto* const whose = this->at(sent.of)) piece_answered(*whose, sent, refusal);
    });
  });
}

/// The version that an update makes, once all of it is there: of some, other bits.
result<void> replay_company::compute_version(keeper_versions& versions,
                                             const actors::version_name& of,
                                             const sent_version& sent) {
  const auto before = versions.at(sent.after);
  if (!before) return tl::unexpected(before.error());
  const auto update = versions.add_to_update(of, sent.piece);
  if (!update) return tl::unexpected(update.error());
  if (!*update) return {};
  auto made = updated((*before)->front(), **update);
  const auto chance = mix({salt_, sent.there.stage, sent.there.start, sent.of.stage, of.step});
  const bool is_odd = chance % 8 < options_.odd_of_8;
  if (is_odd) made = mix({made});
  if (options_.checks_digests && made != sent.digest) {
    if (!is_odd) fault("an update is not what made its version of the one before");
    return fail(errc::bad_data, "the update gives other bits here than where the stage is");
  }
  versions.keep(of.step, numbers_of(made));
  return {};
}

}  // namespace troupe::tests
