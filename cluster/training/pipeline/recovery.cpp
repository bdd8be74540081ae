#include "cluster/training/pipeline/recovery.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>
#include <variant>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/failed_work.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "cluster/recovery/shared_hosts_core.hpp"
#include "engine/step/replay_window.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using caf::strong_actor_ptr;

constexpr auto waits = actors::usual_deadlines;
constexpr std::chrono::milliseconds look_every{10};

}  // namespace

result<void> drop_stages_on(actors::requester& ask, const std::vector<strong_actor_ptr>& hosts) {
  std::vector<actors::future<actors::acknowledged>> answers;
  for (const auto& host : hosts)
    answers.push_back(ask.request<actors::acknowledged>(caf::actor_cast<actors::host_actor>(host),
                                                        actors::drop_stages{}, waits.join));
  return actors::all(std::move(answers)).get().map([](const auto&) {});
}

void warn_of_shared_hosts(const placement_tables& config) {
  const auto& cluster = config.cluster;
  if (!is_over_hosts(cluster.launch) || cluster.nodes.size() < 2) return;
  const auto places = node_of_stages(config);
  if (!places) return;  // was said when the stages were placed
  const auto names = stage_names_of(config.pipeline);
  std::vector<std::string> nodes;
  std::vector<stage_site> sites;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& node = cluster.nodes.at(places->at(i));
    nodes.push_back(node.name);
    sites.push_back({names[i], node.name, host_of_user(node.host)});
  }
  const auto words = words_on_shared_hosts(sites, second_keepers(nodes));
  if (!words.empty()) log::warning(words);
}

stage_recovery::stage_recovery(node_group& group, joined_listening& doors,
                               const optimizers::registry& known, bool may_begin_anew)
    : group_(group), doors_(doors), ask_(group.requester()), known_(known), core_(may_begin_anew) {}

stage_recovery::~stage_recovery() {
  if (here_) caf::anon_send_exit(here_, caf::exit_reason::user_shutdown);
}

result<std::unique_ptr<stage_recovery>> stage_recovery::open(node_group& group,
                                                             joined_listening& doors,
                                                             const optimizers::registry& known,
                                                             bool may_begin_anew) {
  std::unique_ptr<stage_recovery> made(new stage_recovery(group, doors, known, may_begin_anew));
  made->keepers_.resize(group.hosts().size());
  for (std::size_t place = 0; place < group.hosts().size(); ++place)
    if (auto opened = made->open_keeper(place); !opened) return tl::unexpected(opened.error());
  if (const auto host = group.outliving_host()) {
    const auto opened = made->open_keeper_of(host);
    if (!opened && opened.error().code != errc::peer_lost) return tl::unexpected(opened.error());
    if (opened) made->outliving_ = *opened;
  }
  return made;
}

result<strong_actor_ptr> stage_recovery::open_keeper_of(const strong_actor_ptr& host) {
  return ask_
      .request<actors::keeper_opened>(caf::actor_cast<actors::host_actor>(host),
                                      actors::open_keeper{}, waits.join)
      .get()
      .map([](const actors::keeper_opened& opened) { return opened.keeper; });
}

result<void> stage_recovery::open_keeper(std::size_t place) {
  auto opened = open_keeper_of(group_.hosts().at(place));
  if (!opened) return tl::unexpected(opened.error());
  keepers_.at(place) = std::move(*opened);
  return {};
}

strong_actor_ptr stage_recovery::outliving_keeper() const {
  return group_.outliving_host() ? outliving_ : nullptr;
}

strong_actor_ptr stage_recovery::keeper_here() {
  if (!here_) here_ = actors::spawn_keeper(group_.system(), known_);
  return caf::actor_cast<strong_actor_ptr>(here_);
}

std::vector<strong_actor_ptr> stage_recovery::keepers_from(std::size_t stage) const {
  std::vector<strong_actor_ptr> all;
  for (std::size_t further = 0; further < keepers_.size(); ++further)
    all.push_back(keepers_[(stage + further) % keepers_.size()]);
  if (here_) all.push_back(caf::actor_cast<strong_actor_ptr>(here_));
  all.push_back(outliving_keeper());
  std::erase(all, nullptr);
  return all;
}

std::vector<std::vector<strong_actor_ptr>> stage_recovery::keepers(const std::vector<bool>& lends) {
  const auto outliving = outliving_keeper();
  std::vector<std::vector<strong_actor_ptr>> all;
  const bool outlives = outliving != nullptr;
  for (const auto& beside : keepers_beside(group_.hosts_of_places(), lends, outlives)) {
    std::vector<strong_actor_ptr> of{keepers_.at(all.size())};
    if (beside.stage) of.push_back(keepers_.at(*beside.stage));
    if (beside.trainer) of.push_back(outliving ? outliving : keeper_here());
    all.push_back(std::move(of));
  }
  return all;
}

result<stage_recovery::versions> stage_recovery::versions_of(std::size_t stage) {
  const auto keepers = keepers_from(stage);
  std::vector<actors::future<actors::versions_kept>> answers;
  for (const auto& keeper : keepers)
    answers.push_back(ask_.request<actors::versions_kept>(
        caf::actor_cast<actors::keeper_actor>(keeper),
        actors::list_versions{static_cast<std::uint32_t>(stage)}, waits.join));
  versions found;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto kept = answers[i].get();
    const bool is_spare = keepers[i] == outliving_;
    if (!kept && is_spare) continue;  // others have them
    if (!kept) return tl::unexpected(kept.error());
    for (const auto step : kept->steps) found.emplace(step, keepers[i]);
  }
  return found;
}

result<std::optional<stage_recovery::point>> stage_recovery::left_by_last_trainer(
    const std::vector<left_note>& notes, const std::string& slices, std::uint64_t steps_before) {
  const auto of_stages = steps_of_versions();
  if (!of_stages) return tl::unexpected(of_stages.error());
  const auto last = last_left(notes, slices, steps_before, *of_stages);
  if (!last) return std::nullopt;
  return point_at({return_core::source::versions, *last});
}

stage_recovery::point stage_recovery::point_at(const return_core::go_on& at) const {
  point found{at};
  if (at.from == return_core::source::versions)
    for (const auto& each : listed_) found.versions.push_back({each.at(at.step), at.step});
  return found;
}

result<std::vector<std::vector<std::uint64_t>>> stage_recovery::steps_of_versions() {
  listed_.clear();
  std::vector<std::vector<std::uint64_t>> steps;
  for (std::size_t stage = 0; stage < keepers_.size(); ++stage) {
    auto here = versions_of(stage);
    if (!here) return tl::unexpected(here.error());
    steps.emplace_back();
    for (const auto& [step, keeper] : *here) steps.back().push_back(step);
    listed_.push_back(std::move(*here));
  }
  return steps;
}

result<void> stage_recovery::replace(const std::vector<std::size_t>& places) {
  if (auto replaced = group_.replace(places); !replaced) return replaced;
  if (auto arranged = doors_.arrange(); !arranged) return arranged;
  for (std::size_t place = 0; place < keepers_.size(); ++place)
    if (!keepers_[place])
      if (auto opened = open_keeper(place); !opened) return opened;
  return {};
}

result<void> stage_recovery::drop_stages() {
  std::set<std::size_t> places;
  for (std::size_t place = 0; place < keepers_.size(); ++place) places.insert(place);
  return drop_stages_of(places);
}

result<void> stage_recovery::drop_stages_of(const std::set<std::size_t>& places) {
  std::vector<strong_actor_ptr> hosts;
  for (const auto place : places)
    if (keepers_.at(place)) hosts.push_back(group_.hosts().at(place));
  return drop_stages_on(ask_, hosts);
}

void stage_recovery::say(const error& told, std::size_t count) {
  log::warning(told.text + (count == 1 ? "; it is replaced"
                                       : "; " + std::to_string(count) + " stages are replaced"));
}

result<void> stage_recovery::fence(const error& why, const std::vector<std::string>& stages) {
  if (why.code == errc::peer_lost) return {};
  const auto failed = actors::failed_work_in(why);
  if (!failed) return tl::unexpected(why);
  const auto stage = std::ranges::find_if(
      stages, [&](const auto& each) { return failed->what.starts_with(each + ": "); });
  if (stage == stages.end()) return tl::unexpected(why);
  if (const auto before = throws_.threw(failed->what, failed->reason))
    return fail(errc::handler_failed,
                failed->what + " failed twice: " + *before + "; then " + failed->reason);
  group_.lose(static_cast<std::size_t>(stage - stages.begin()), {errc::peer_lost, why.text});
  return {};
}

result<std::vector<stage_recovery::stage_loss>> stage_recovery::replace_lost(
    const error& why, std::uint64_t reached) {
  core_.reached(reached);
  auto cause = why;
  for (;;) {
    const auto lost = group_.lost(waits.known_loss);
    if (!core_.begin_replay(lost)) return {};
    say(group_.explain(cause, waits.explained), lost.size());
    for (const auto place : lost) {
      keepers_.at(place) = nullptr;
      not_replayed_.insert(place);
    }
    auto mended = mend();
    if (mended || mended.error().code != errc::peer_lost || !is_another_lost()) return mended;
    cause = mended.error();
  }
}

/// What is left of a replay that another loss has cut off is dropped first.
result<std::vector<stage_recovery::stage_loss>> stage_recovery::mend() {
  if (auto dropped = drop_stages_of(not_replayed_); !dropped)
    return tl::unexpected(dropped.error());
  std::vector<stage_loss> all;
  std::vector<std::vector<std::uint64_t>> steps;
  for (const auto place : not_replayed_) {
    auto found = versions_of(place);
    if (!found) return tl::unexpected(found.error());
    auto& of = steps.emplace_back();
    for (const auto& [step, keeper] : *found) of.push_back(step);
    all.push_back({.place = place, .versions = std::move(*found)});
  }
  if (!engine::newest_common(steps, std::numeric_limits<std::uint64_t>::max())) return {};
  if (auto replaced = replace(core_.replay_listed()); !replaced)
    return tl::unexpected(replaced.error());
  for (auto& each : all) each.keeper = keepers_.at(each.place);
  return all;
}

void stage_recovery::replayed() {
  core_.replayed();
  not_replayed_.clear();
}

result<stage_recovery::point> stage_recovery::recover(const error& why, std::uint64_t reached,
                                                      const return_sources& sources) {
  core_.reached(reached);
  not_replayed_.clear();
  return find_point(begin_return(why), why, sources);
}

// For the core it is as if the trainer itself could not have read what it has told to go on from.
result<stage_recovery::point> stage_recovery::pass_over(const error& why,
                                                        const return_sources& sources) {
  return find_point(core_.was_read(false), why, sources);
}

result<stage_recovery::point> stage_recovery::find_point(return_core::effect next, error cause,
                                                         const return_sources& sources) {
  for (;;) {
    if (const auto* const end = std::get_if<return_core::end_run>(&next))
      return tl::unexpected(end_of(end->why, cause, sources));
    if (const auto* const at = std::get_if<return_core::go_on>(&next)) return point_at(*at);
    auto done = perform(next, sources);
    if (done) {
      next = std::move(*done);
      continue;
    }
    if (done.error().code != errc::peer_lost || !is_another_lost())
      return tl::unexpected(done.error());
    cause = done.error();
    next = begin_return(cause);
  }
}

return_core::effect stage_recovery::begin_return(const error& why) {
  const auto patience = core_.is_half_mended() ? std::chrono::seconds{} : waits.known_loss;
  const auto places = group_.lost(patience);
  auto next = core_.lost(places);
  if (!std::holds_alternative<return_core::drop_stages>(next) || places.empty()) return next;
  say(group_.explain(why, waits.explained), places.size());
  for (const auto place : places) keepers_.at(place) = nullptr;
  return next;
}

result<return_core::effect> stage_recovery::perform(const return_core::effect& what,
                                                    const return_sources& sources) {
  const auto read = [this](const result<bool>& is_well) {
    return is_well.map([this](bool well) { return core_.was_read(well); });
  };
  if (std::holds_alternative<return_core::drop_stages>(what))
    return drop_stages().map([this] { return core_.dropped(); });
  if (std::holds_alternative<return_core::list_versions>(what))
    return steps_of_versions().map([this](const auto& steps) { return core_.listed(steps); });
  if (const auto* const lost = std::get_if<return_core::replace_lost>(&what))
    return replace(lost->places).and_then(sources.nodes_replaced).map([this] {
      return core_.replaced();
    });
  if (std::holds_alternative<return_core::list_checkpoints>(what))
    return core_.own_checkpoints(sources.own_checkpoints());
  if (const auto* const checkpoint = std::get_if<return_core::read_checkpoint>(&what))
    return read(sources.read_checkpoint(checkpoint->step));
  return read(sources.read_beginning());
}

error stage_recovery::end_of(return_core::reason reason, const error& why,
                             const return_sources& sources) {
  if (reason == return_core::reason::nobody_lost) return why;
  if (reason == return_core::reason::no_beginning)
    return {errc::handler_failed, sources.why_no_beginning()};
  return {errc::handler_failed, group_.explain(why, waits.explained).text + "; the run was lost " +
                                    std::to_string(core_.in_vain() + 1) + " times after step " +
                                    std::to_string(core_.last_reached())};
}

bool stage_recovery::is_another_lost() {
  const auto end = std::chrono::steady_clock::now() + waits.known_loss;
  while (group_.lost({}) == core_.without_node()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(look_every);
  }
  return true;
}

}  // namespace troupe::cluster
