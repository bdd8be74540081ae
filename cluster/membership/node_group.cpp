#include "cluster/membership/node_group.hpp"

#include <algorithm>
#include <caf/actor.hpp>
#include <caf/send.hpp>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/remote/told_loss.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/membership/outliving/invitation.hpp"
#include "cluster/membership/stage_node.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/host_name.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto waits = actors::usual_deadlines;
constexpr milliseconds look_every{50};  // for a node that ended while it was waited for
constexpr milliseconds look_for_word_every{5};
constexpr milliseconds outliving_patience{5000};  // it may still be busy with the trainer before
constexpr const char* no_outliving =
    "no process keeps versions for another trainer: if this one is lost, the run goes back to its "
    "last checkpoint";

}  // namespace

result<std::unique_ptr<node_group>> node_group::start(
    std::shared_ptr<node_launcher> where, const std::vector<std::string>& names,
    const std::string& listen, actors::progress_settings progress, milliseconds patience,
    std::size_t understudies, std::function<bool()> is_stopped, const message_adder& own_messages,
    int invited) try {
  if (auto enough = actors::check_threads(1 + names.size()); !enough)
    return tl::unexpected(enough.error());
  std::unique_ptr<node_group> group(
      new node_group(std::move(where), std::move(progress), understudies, own_messages));
  group->first_names_ = group->names_ = names;
  group->starts_.assign(names.size(), 1);
  group->patience_ = patience;
  group->invited_ = invited;
  group->is_stopped_ = std::move(is_stopped);
  if (auto opened = group->open(listen); !opened) {
    if (opened.error().code != errc::cancelled) group->note_failure(opened.error());
    return tl::unexpected(opened.error());
  }
  return group;
} catch (const std::exception& problem) {
  return fail(errc::io_failed, "the run's own node cannot start: " + engine::reason_of(problem));
}

node_group::node_group(std::shared_ptr<node_launcher> where, actors::progress_settings progress,
                       std::size_t understudies, const message_adder& own_messages)
    : system_(config_),
      launcher_(std::move(where)),
      understudies_(*launcher_, understudies),
      progress_(std::move(progress)) {
  actors::add_protocol(types_);
  if (own_messages) own_messages(types_);
}

result<void> node_group::open(const std::string& listen) {
  if (auto listening = open_node(listen); !listening) return listening;
  for (const auto& name : names_) {
    if (auto started = launcher_->start(name, node_->address()); !started) return started;
  }
  if (auto begun = understudies_.fill(hosts_of_places(), node_->address()); !begun) return begun;
  if (invited_ >= 0) {
    // A trainer before may have listened at the same address.
    static_cast<void>(why_declined(invited_, node_->address()));
    if (auto told = launcher_->invite(invited_, node_->address()); !told) {
      log::warning(std::string(no_outliving) + ": " + told.error().text);
      invited_ = -1;
    }
  }
  auto all = understudies_.names();
  all.insert(all.begin(), names_.begin(), names_.end());
  if (auto here = await(all); !here) return here;
  for (const auto& name : names_) {
    const auto host = node_->find(name, "host", waits.join);
    if (!host) return tl::unexpected(explain(host.error()));
    hosts_.push_back(*host);
  }
  if (invited_ >= 0) meet_outliving();
  return {};
}

void node_group::meet_outliving() {
  const auto absence = [this] {
    const auto why = why_declined(invited_, node_->address());
    return fail(errc::timed_out, "it has not joined" + (why.empty() ? "" : ": " + why));
  };
  const auto host = node_->wait_for(outliving, outliving_patience)
                        ? node_->find(outliving, "host", waits.join)
                        : absence();
  if (!host) return log::warning(std::string(no_outliving) + ": " + host.error().text);
  const std::scoped_lock lock(mutex_);
  if (!is_outliving_lost_) outliving_host_ = *host;
}

caf::strong_actor_ptr node_group::outliving_host() const {
  const std::scoped_lock lock(mutex_);
  return outliving_host_;
}

result<void> node_group::open_node(const std::string& listen) {
  auto node = actors::node::start(
      system_, types_,
      {.name = "trainer",
       .listen = listen,
       .on_node_down = [this](const auto& name, const auto& why) { on_node_down(name, why); },
       .admit = [this](const auto& who) { return admit(who); },
       .on_refused = [this](const auto& why) { on_refused(why); },
       .on_told = [this](const auto& name, const auto& told) { on_told(name, told); }},
      launcher_->trainer_link());
  if (!node) return tl::unexpected(node.error());
  node_ = std::move(*node);
  return {};
}

/// A name of the run's, or that of a successor ("stage-1.2") or an understudy, of the run's own
/// program. On the link's thread.
result<void> node_group::admit(const actors::greeting& who) const {
  const auto is_of = [&](const auto& each) {
    return who.name == each || who.name.starts_with(each + ".");
  };
  if (invited_ >= 0 && who.name == outliving) return {};  // a copy of this very process
  if (!understudies::is_one(who.name) && std::ranges::none_of(first_names_, is_of))
    return fail(errc::bad_config, words_on_unknown_node(who.name, first_names_));
  const auto required = launcher_->required_build();
  if (required.empty() || who.build == required) return {};
  return fail(errc::bad_config,
              words_on_other_build(who, {host_name(), own_program().string(), required}));
}

result<void> node_group::await(const std::vector<std::string>& names) {
  {
    const std::scoped_lock lock(mutex_);
    countdown_.emplace(patience_);
  }
  auto all_here = await_counted(names);
  const std::scoped_lock lock(mutex_);
  countdown_.reset();
  return all_here;
}

result<void> node_group::await_counted(const std::vector<std::string>& names) {
  const auto begin = steady_clock::now();
  auto missing = names;
  for (;;) {
    while (!missing.empty() && node_->wait_for(missing.front(), look_every))
      missing.erase(missing.begin());
    if (missing.empty()) return {};
    if (is_stopped_ && is_stopped_())
      return fail(errc::cancelled, "was stopped before all nodes had joined");
    for (const auto& nodes : {names, this->names()}) {
      if (auto ended = end_of(nodes)) return tl::unexpected(*ended);
      if (const auto lost = loss_of(nodes)) return tl::unexpected(explain(*lost));
    }
    const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
    if (waited > patience_) {
      std::erase_if(missing, [&](const auto& name) { return node_->wait_for(name, {}); });
      if (missing.empty()) return {};
      const std::scoped_lock lock(mutex_);
      return fail(errc::timed_out, countdown_->failure(missing));
    }
    const std::scoped_lock lock(mutex_);
    if (const auto line = countdown_->tick(waited, missing)) log::info(*line);
  }
}

result<std::vector<actors::stage_actor>> node_group::build(
    const std::vector<actors::build_stage>& orders) {
  auto ask = requester();
  std::vector<actors::future<actors::stage_built>> answers;
  for (std::size_t i = 0; i < orders.size(); ++i)
    answers.push_back(ask.request<actors::stage_built>(
        caf::actor_cast<actors::host_actor>(hosts_.at(i)), orders[i], waits.build));
  const auto built = actors::all(std::move(answers)).get();
  if (!built) return tl::unexpected(explain(built.error()));
  std::vector<actors::stage_actor> stages;
  for (const auto& each : *built) {
    note_processor(stages.size(), each.processor);
    stages.push_back(caf::actor_cast<actors::stage_actor>(each.stage));
  }
  return stages;
}

result<actors::stage_actor> node_group::build_at(std::size_t place,
                                                 const actors::build_stage& order) {
  auto ask = requester();
  const auto built =
      ask.request<actors::stage_built>(caf::actor_cast<actors::host_actor>(hosts_.at(place)), order,
                                       waits.build)
          .get();
  if (!built) return tl::unexpected(explain(built.error()));
  note_processor(place, built->processor);
  return caf::actor_cast<actors::stage_actor>(built->stage);
}

void node_group::note_processor(std::size_t place, const std::string& processor) {
  if (const auto before = processors_.computes_on(place, processor))
    log::warning(names_.at(place) + " computes on " + processor + ", and its stage began on " +
                 *before + ": sums may differ in their bits from here on");
}

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
  if (!lost_.empty()) return;
  auto there = names_;
  if (outliving_host_) there.emplace_back(outliving);
  const auto found = suspicions_.due(there, waits.suspicion, steady_clock::now());
  if (!found) return;
  const error why{errc::peer_lost,
                  found->by + " has lost sight of " + found->of + ", which others have not"};
  if (found->of == outliving) {  // it lacks versions from now on
    lock.unlock();
    return node_->lose(outliving, why);
  }
  if (!hung_) hung_ = actors::progress_core::hung{found->of, why};
  lock.unlock();
  log::warning(why.text + ": it is lost");
  node_->lose(found->of, why);
  launcher_->kill(found->of);
}

void node_group::lose(std::size_t place, const error& why) {
  const auto& name = names_.at(place);
  {
    const std::scoped_lock lock(mutex_);
    if (!hung_) hung_ = actors::progress_core::hung{name, why};
  }
  node_->lose(name, why);
  launcher_->kill(name);
}

void node_group::perform(const actors::progress_core::effects& what) {
  for (const auto& effect : what) {
    if (const auto* slow = std::get_if<actors::progress_core::slow>(&effect)) {
      log::warning(slow->text);
    } else if (const auto* on = std::get_if<actors::progress_core::went_on>(&effect)) {
      log::info(on->text);
    } else if (const auto* hung = std::get_if<actors::progress_core::hung>(&effect)) {
      {
        const std::scoped_lock lock(mutex_);
        if (!hung_)
          hung_ = actors::progress_core::hung{hung->node, {errc::peer_lost, hung->why.text}};
      }
      log::warning(hung->why.text + ": it is lost");
      node_->lose(hung->node, hung->why);
      launcher_->kill(hung->node);
    }
  }
}

std::vector<std::size_t> node_group::lost(milliseconds patience) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return !lost_.empty(); });
  std::set<std::string> gone;
  for (const auto& [name, why] : lost_) gone.insert(name);
  for (auto& each : launcher_->ends()) gone.insert(std::move(each.node));
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (gone.contains(names_[i])) places.push_back(i);
  return places;
}

std::vector<std::string> node_group::hosts_of_places() const {
  std::vector<std::string> hosts;
  for (const auto& name : names_) hosts.push_back(launcher_->host_of(name));
  return hosts;
}

result<void> node_group::put_another(std::size_t place) {
  const auto old = names_.at(place);
  const auto host = launcher_->host_of(old);
  const auto understudy = understudies_.take(host);
  const auto by =
      understudy ? *understudy : first_names_.at(place) + "." + std::to_string(++starts_.at(place));
  const auto end = end_of({old});
  {
    const std::scoped_lock lock(mutex_);
    names_[place] = by;
    lost_.erase(old);
    hung_.reset();
  }
  if (auto ended = launcher_->give_up(old); !ended) return ended;
  if (!understudy)
    if (auto begun = launcher_->start_on(host, by, node_->address()); !begun)
      return not_started(by, end ? end->text : old + " is lost", begun.error());
  const auto there = launcher_->host_of(by);
  if (there != host)
    log::warning(by + " takes the place of " + old + " on node " + there);
  else if (understudy)
    log::info(by + " takes the place of " + old);
  return {};
}

/// A node that the system has refused, for now perhaps, is lost like one that has not joined.
tl::unexpected<error> node_group::not_started(const std::string& name, const std::string& before,
                                              const error& why) {
  if (why.code == errc::peer_lost) return fail(why.code, before + ", and " + why.text);
  if (why.code != errc::io_failed) return tl::unexpected(why);
  const error refused{errc::peer_lost,
                      why.text.starts_with(name) ? why.text : name + ": " + why.text};
  const std::scoped_lock lock(mutex_);
  lost_.emplace(name, refused);
  return tl::unexpected(refused);
}

result<void> node_group::replace(const std::vector<std::size_t>& places) {
  std::vector<std::string> fresh;
  const auto lose_all = [&](const error& why) -> result<void> {
    const std::scoped_lock lock(mutex_);
    for (const auto& each : fresh) lost_.emplace(each, why);
    // Also where one is only late: another may not be.
    return fail(errc::peer_lost, why.text);
  };
  for (const auto place : places) {
    if (auto put = put_another(place); !put)
      return loss_of({names_[place]}) ? lose_all(put.error()) : put;
    fresh.push_back(names_[place]);
  }
  const auto here = await(fresh);
  if (!here && here.error().code == errc::cancelled)
    return fail(errc::cancelled, "the run was stopped while it waited for " +
                                     joined_with_and(fresh) + ", in the place of what it has lost");
  if (!here) return lose_all(here.error());
  for (const auto place : places) {
    const auto host = node_->find(names_[place], "host", waits.join);
    if (!host) return lose_all(explain(host.error()));
    hosts_[place] = *host;
    log::debug(names_[place] + " has the place of " + first_names_[place]);
  }
  return {};
}

void node_group::fill_understudies() {
  if (auto begun = understudies_.fill(hosts_of_places(), node_->address()); !begun)
    log::warning("no other understudy is started: " + begun.error().text);
}

void node_group::on_node_down(const std::string& name, const error& why) {
  if (name == outliving) {
    {
      const std::scoped_lock lock(mutex_);
      outliving_host_ = nullptr;
      if (std::exchange(is_outliving_lost_, true)) return;
    }
    return log::warning(std::string(no_outliving) + ": " + why.text);
  }
  if (why.code == errc::cancelled) return;
  if (understudies_.lost(name)) {
    log::warning(name + " is lost, an understudy; " +
                 (understudies_.goes_on() ? "another one is started" : "no other one is started"));
    return launcher_->kill(name);
  }
  const std::scoped_lock lock(mutex_);
  lost_.emplace(name, why);
  changed_.notify_all();
}

/// On the link's thread.
void node_group::on_refused(const error& why) {
  const std::scoped_lock lock(mutex_);
  if (countdown_) countdown_->refused(why.text);
}

std::vector<std::string> node_group::names() const {
  const std::scoped_lock lock(mutex_);
  return names_;
}

std::optional<error> node_group::end_of(const std::vector<std::string>& nodes) const {
  for (auto& each : launcher_->ends())
    if (each.node.empty() || std::ranges::find(nodes, each.node) != nodes.end())
      return std::move(each.how);
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
  auto told = explain_of({name}, {errc::peer_lost, why.text}, waits.last_word);
  {
    const std::scoped_lock lock(mutex_);
    if (hung_ && hung_->node == name) hung_.reset();
  }
  if (auto ended = launcher_->give_up(name); !ended) log::warning(ended.error().text);
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
    if (auto ended = end_of(nodes))
      return {errc::peer_lost, node_->stood_still() ? ended->text + ": " + why.text : ended->text};
    if (left <= 0) return with_place(why);
    std::this_thread::sleep_for(look_for_word_every);
  }
}

/// Where not all have joined: who has is told the end like the others.
void node_group::find_hosts_of_joined() {
  for (const auto& name : names_) {
    if (!node_ || !node_->wait_for(name, {}) || loss_of({name})) continue;
    if (const auto host = node_->find(name, "host", waits.end)) hosts_.push_back(*host);
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

node_group::~node_group() {
  tell_other_ends();
  bool all_here = hosts_.size() == names_.size();
  if (!all_here) find_hosts_of_joined();
  for (const auto& name : understudies_.names()) {
    const auto host = all_here && node_->wait_for(name, waits.end)
                          ? node_->find(name, "host", waits.join)
                          : fail(errc::peer_lost, name);
    all_here = all_here && host;
    if (host) hosts_.push_back(*host);
  }
  {
    const std::scoped_lock lock(mutex_);
    is_outliving_lost_ = true;  // from here on that is no loss
  }
  // The first may have ended before the last is told to.
  launcher_->expect_ends();
  for (const auto& host : std::exchange(hosts_, {}))
    caf::anon_send(caf::actor_cast<caf::actor>(host), actors::shut_down{failure_});
  system_.await_all_actors_done();
  // The trainer leaves last. But a node whose host was never found ends when it hears us leave.
  if (!all_here) node_.reset();
  const bool in_order = !loss_of(names_) && !end_of(names_);
  if (auto buried = understudies_.bury(); !buried) log::warning(buried.error().text);
  launcher_->join(in_order);
}

}  // namespace troupe::cluster
