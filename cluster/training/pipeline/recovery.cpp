#include "cluster/training/pipeline/recovery.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using caf::strong_actor_ptr;

constexpr auto waits = actors::usual_deadlines;
/// From a stage's word that another was lost to the system's.
constexpr std::chrono::seconds until_known{5};
/// From a loss that is known to the system's word on it, which is there at once or never comes.
constexpr std::chrono::milliseconds until_explained{300};
constexpr std::chrono::milliseconds look_every{10};

}  // namespace

stage_recovery::stage_recovery(node_group& group)
    : group_(group),
      ask_(group.system(), [&group](const caf::node_id& id) { return group.node().name_of(id); }) {}

stage_recovery::~stage_recovery() {
  if (here_) caf::anon_send_exit(here_, caf::exit_reason::user_shutdown);
}

result<std::unique_ptr<stage_recovery>> stage_recovery::open(node_group& group) {
  std::unique_ptr<stage_recovery> made(new stage_recovery(group));
  made->keepers_.resize(group.hosts().size());
  if (group.hosts().size() == 1) made->here_ = actors::spawn_keeper(group.system());
  for (std::size_t place = 0; place < group.hosts().size(); ++place)
    if (auto opened = made->open_keeper(place); !opened) return tl::unexpected(opened.error());
  return made;
}

result<void> stage_recovery::open_keeper(std::size_t place) {
  const auto opened = ask_.request<actors::keeper_opened>(
                              caf::actor_cast<actors::host_actor>(group_.hosts().at(place)),
                              actors::open_keeper{}, waits.join)
                          .get();
  if (!opened) return tl::unexpected(opened.error());
  keepers_.at(place) = opened->keeper;
  return {};
}

std::vector<strong_actor_ptr> stage_recovery::keepers_from(std::size_t stage) const {
  std::vector<strong_actor_ptr> all;
  for (std::size_t further = 0; further < keepers_.size(); ++further)
    all.push_back(keepers_[(stage + further) % keepers_.size()]);
  all.push_back(caf::actor_cast<strong_actor_ptr>(here_));
  std::erase(all, nullptr);
  return all;
}

std::vector<std::vector<strong_actor_ptr>> stage_recovery::keepers() const {
  if (here_) return {keepers_from(0)};
  const auto second = second_keepers(group_.hosts_of_places());
  std::vector<std::vector<strong_actor_ptr>> all;
  for (std::size_t stage = 0; stage < keepers_.size(); ++stage)
    all.push_back({keepers_[stage], keepers_[second[stage]]});
  return all;
}

result<std::map<std::uint64_t, strong_actor_ptr>> stage_recovery::versions_of(std::size_t stage) {
  const auto keepers = keepers_from(stage);
  std::vector<actors::future<actors::versions_kept>> answers;
  for (const auto& keeper : keepers)
    answers.push_back(ask_.request<actors::versions_kept>(
        caf::actor_cast<actors::keeper_actor>(keeper),
        actors::list_versions{static_cast<std::uint32_t>(stage)}, waits.join));
  const auto kept = actors::all(std::move(answers)).get();
  if (!kept) return tl::unexpected(kept.error());
  std::map<std::uint64_t, strong_actor_ptr> found;
  for (std::size_t i = 0; i < kept->size(); ++i)
    for (const auto step : kept->at(i).steps) found.emplace(step, keepers[i]);
  return found;
}

result<std::optional<stage_recovery::point>> stage_recovery::newest() {
  std::map<std::uint64_t, std::vector<actors::version_place>> found;  // by step, of stages in turn
  for (std::size_t stage = 0; stage < keepers_.size(); ++stage) {
    const auto here = versions_of(stage);
    if (!here) return tl::unexpected(here.error());
    for (const auto& [step, keeper] : *here) {
      auto& places = found[step];
      if (places.size() == stage) places.push_back({keeper, step});
    }
  }
  for (auto each = found.rbegin(); each != found.rend(); ++each)
    if (each->second.size() == keepers_.size()) return point{each->first, std::move(each->second)};
  return std::nullopt;
}

result<void> stage_recovery::drop_stages() {
  std::vector<actors::future<actors::acknowledged>> answers;
  for (std::size_t place = 0; place < keepers_.size(); ++place)
    if (keepers_[place])
      answers.push_back(ask_.request<actors::acknowledged>(
          caf::actor_cast<actors::host_actor>(group_.hosts().at(place)), actors::drop_stages{},
          waits.join));
  return actors::all(std::move(answers)).get().map([](const auto&) {});
}

void stage_recovery::note_progress(std::uint64_t reached) {
  if (std::exchange(reached_, reached) < reached) in_vain_ = 0;
}

void stage_recovery::say(const error& told) const {
  log::warning(told.text + (lost_.size() == 1
                                ? "; it is replaced"
                                : "; " + std::to_string(lost_.size()) + " stages are replaced"));
}

result<std::optional<stage_recovery::lone_loss>> stage_recovery::replace_one(
    const error& why, std::uint64_t reached) {
  note_progress(reached);
  lost_ = group_.lost(until_known);
  if (lost_.size() != 1 || in_vain_ == most_in_vain) return std::nullopt;
  say(group_.explain(why, until_explained));
  lone_loss loss{.place = lost_.front()};
  loss.lost_keeper = std::exchange(keepers_.at(loss.place), nullptr);
  is_replaced_ = true;
  auto versions = versions_of(loss.place);
  if (!versions) return tl::unexpected(versions.error());
  loss.versions = std::move(*versions);
  ++in_vain_;
  if (auto replaced = group_.replace(std::exchange(lost_, {})); !replaced)
    return tl::unexpected(replaced.error());
  if (auto opened = open_keeper(loss.place); !opened) return tl::unexpected(opened.error());
  loss.keeper = keepers_.at(loss.place);
  return loss;
}

result<stage_recovery::point> stage_recovery::recover(const error& why, std::uint64_t without,
                                                      std::uint64_t reached) {
  note_progress(reached);
  auto from = try_once(why, without);
  while (!from && from.error().code == errc::peer_lost && is_another_lost())
    from = try_once(from.error(), without);
  if (from) is_replaced_ = false;
  return from;
}

bool stage_recovery::is_another_lost() {
  const auto end = std::chrono::steady_clock::now() + until_known;
  while (group_.lost({}) == lost_) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(look_every);
  }
  return true;
}

result<stage_recovery::point> stage_recovery::try_once(const error& why, std::uint64_t without) {
  lost_ = group_.lost(is_replaced_ ? std::chrono::seconds{} : until_known);
  if (lost_.empty() && !is_replaced_) return tl::unexpected(why);
  const auto told = group_.explain(why, until_explained);
  if (in_vain_ == most_in_vain && !lost_.empty())
    return fail(errc::handler_failed, told.text + "; the run was lost " +
                                          std::to_string(in_vain_ + 1) + " times behind step " +
                                          std::to_string(reached_));
  if (!lost_.empty()) say(told);
  for (const auto place : lost_) keepers_.at(place) = nullptr;
  if (auto dropped = drop_stages(); !dropped) return tl::unexpected(dropped.error());
  auto found = newest();
  if (!found) return tl::unexpected(found.error());
  const auto from = found->value_or(point{without});
  if (!lost_.empty()) ++in_vain_;  // not before: others are often found to be lost one by one
  if (auto replaced = group_.replace(std::exchange(lost_, {})); !replaced)
    return tl::unexpected(replaced.error());
  for (std::size_t place = 0; place < keepers_.size(); ++place)
    if (!keepers_[place])
      if (auto opened = open_keeper(place); !opened) return tl::unexpected(opened.error());
  return from;
}

}  // namespace troupe::cluster
