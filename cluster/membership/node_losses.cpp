#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "actors/remote/told_loss.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

/// What a group knows of nodes that hang or are lost, and how it says why.
namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds look_for_word_every{5};

}  // namespace

void node_group::on_told(const std::string& name, const std::vector<messages::element>& told) {
  for (const auto& each : told) {
    if (const auto report = actors::to_report(each)) perform(progress_.heard(name, *report));
    if (const auto loss = actors::to_loss(each)) {
      const std::scoped_lock lock(mutex_);
      // Of a stage and what outlives the trainer it is never the stage that has to go.
      const bool is_of_stage = name == outliving;
      suspicions_.heard(is_of_stage ? loss->node : name, is_of_stage ? outliving : loss->node,
                        steady_clock::now());
    }
  }
  end_suspect();
}

/// On the link's thread.
void node_group::end_suspect() {
  std::unique_lock lock(mutex_);
  if (is_place_lost()) return;
  auto there = names_;
  if (outliving_host_) there.emplace_back(outliving);
  const auto found = suspicions_.due(there, actors::usual_deadlines.suspicion, steady_clock::now());
  if (!found) return;
  const error why{errc::peer_lost,
                  found->by + " has lost sight of " + found->of + ", which others have not"};
  if (found->of == outliving) {  // it lacks versions from now on
    lock.unlock();
    return node_->lose(outliving, why);
  }
  end_node(std::move(lock), found->of, why, true);
}

/// That is of no use any more, whatever its process does. `lock`: of the mutex. Whoever sees that
/// it ends is told why.
void node_group::end_node(std::unique_lock<std::mutex> lock, const std::string& name,
                          const error& why, bool warns) {
  if (!hung_) hung_ = actors::progress_core::hung{name, {errc::peer_lost, why.text}};
  lock.unlock();
  if (warns) log::warning(why.text + ": it is lost");
  node_->lose(name, why);
  launcher_->kill(name);
}

/// Whether understudies on other hosts can take the places of all nodes of this one's host, and so
/// nobody shares the cores of another one if it is given up. From any thread.
bool node_group::has_spares_for(const std::string& name) const {
  const auto host = launcher_->host_of(name);
  if (!understudies_.suffice_beside(host, 1)) return false;  // mostly there is none
  const auto places = names();
  if (std::ranges::find(places, name) == places.end()) return false;
  const auto is_there = [&](const auto& each) { return launcher_->host_of(each) == host; };
  const auto count = std::ranges::count_if(places, is_there);
  return understudies_.suffice_beside(host, static_cast<std::size_t>(count));
}

void node_group::lose(std::size_t place, const error& why) {
  end_node(std::unique_lock(mutex_), names_.at(place), why, false);
}

void node_group::perform(const actors::progress_core::effects& what) {
  for (const auto& effect : what) {
    if (const auto* slow = std::get_if<actors::progress_core::slow>(&effect)) {
      log::warning(slow->text);
    } else if (const auto* on = std::get_if<actors::progress_core::went_on>(&effect)) {
      log::info(on->text);
    } else if (const auto* hung = std::get_if<actors::progress_core::hung>(&effect)) {
      end_node(std::unique_lock(mutex_), hung->node, hung->why, true);
    }
  }
}

std::vector<std::size_t> node_group::lost(milliseconds patience) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return is_place_lost(); });
  std::set<std::string> gone;
  for (const auto& [name, why] : lost_) gone.insert(name);
  for (auto& each : launcher_->ends()) gone.insert(std::move(each.node));
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (gone.contains(names_[i])) places.push_back(i);
  return places;
}

/// Whether a node is lost that has a place. Of one whose place another has taken, since its
/// launcher said first that it had ended, the loss may be told later. Under the lock.
bool node_group::is_place_lost() const {
  return std::ranges::any_of(names_, [this](const auto& name) { return lost_.contains(name); });
}

std::optional<error> node_group::end_of(const std::vector<std::string>& nodes) const {
  for (auto& each : launcher_->ends())
    if (each.node.empty() || std::ranges::find(nodes, each.node) != nodes.end())
      return std::move(each.how);
  return std::nullopt;
}

/// Of one that `why` tells of and whose place is still empty: the launcher, which has given it up,
/// says it no more.
std::optional<error> node_group::end_of_vacated(const std::vector<std::string>& nodes,
                                                const error& why) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& each : nodes)
    if (const auto found = vacated_.find(each); found != vacated_.end() && found->second.how &&
                                                actors::loss_told_in(why.text, found->second.name))
      return found->second.how;
  return std::nullopt;
}

/// Of the first of these that had joined.
std::optional<error> node_group::loss_of(const std::vector<std::string>& nodes) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& each : nodes)
    if (const auto found = lost_.find(each); found != lost_.end()) return found->second;
  return std::nullopt;
}

/// What was asked of a node that is lost says less than which node that is, where it ran and why
/// it is lost.
error node_group::with_place(const error& why) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, lost] : lost_) {
    const auto loss = actors::loss_told_in(lost.text, name);
    if (!loss || !actors::loss_told_in(why.text, name)) continue;
    auto place = launcher_->place_of(name);
    const auto index = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
    if (place == name && index < hosts_.size()) {
      const auto where = node_->address_of(hosts_[index]).address;
      const auto door = messages::meeting_place::parse(where).outside;
      if (!door.starts_with("unix:")) place += " (" + door + ")";
    }
    const auto& connection = loss->connection;
    if (place == name && connection.find(':') != std::string::npos)  // all that is known of it
      place += " (" + connection.substr(0, connection.rfind(':')) + ")";
    return {why.code, words_on_lost_node(place, loss->reason)};
  }
  return why;
}

error node_group::leave_out(std::size_t place, const error& why) {
  const auto& name = names_.at(place);
  auto told = explain_of({name}, {errc::peer_lost, why.text}, actors::usual_deadlines.last_word);
  {
    const std::scoped_lock lock(mutex_);
    if (hung_ && hung_->node == name) hung_.reset();
  }
  if (auto ended = give_up(name, end_of({name})); !ended) log::warning(ended.error().text);
  return told;
}

error node_group::explain(const error& why, milliseconds patience) const {
  return explain_of(names(), why, patience);
}

error node_group::explain_of(const std::vector<std::string>& nodes, const error& why,
                             milliseconds patience) const {
  if (why.code != errc::peer_lost) return why;
  {
    const std::scoped_lock lock(mutex_);
    if (hung_ && std::ranges::find(nodes, hung_->node) != nodes.end()) return hung_->why;
  }
  // The system's word on a process that has ended comes for sure, once all of its memory is freed.
  const bool comes = why.text.find(" has ended, and was silent ") != std::string::npos;
  // Looks are counted, not time: on a busy machine this thread may sleep through all of the latter.
  for (auto left = (comes ? actors::usual_deadlines.end : patience) / look_for_word_every;;
       --left) {
    auto ended = end_of(nodes);
    if (!ended) ended = end_of_vacated(nodes, why);
    if (ended)
      return {errc::peer_lost, node_->stood_still() ? ended->text + ": " + why.text : ended->text};
    if (left <= 0) return with_place(why);
    std::this_thread::sleep_for(look_for_word_every);
  }
}

/// A run fails for one reason, and what else has ended by then is not to be kept from the user.
void node_group::tell_other_ends() const {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_.empty() || hung_) return;  // what hung was killed by us
  }
  std::set<std::string> told;
  for (const auto& each : launcher_->ends())
    if (!each.is_told && failure_.find(each.how.text) == std::string::npos &&
        told.insert(each.how.text).second)
      log::warning(each.how.text);
}

}  // namespace troupe::cluster
