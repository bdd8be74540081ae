#include "cluster/membership/node_group.hpp"

#include <algorithm>
#include <caf/actor.hpp>
#include <caf/send.hpp>
#include <exception>
#include <utility>

#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/membership/outliving/invitation.hpp"
#include "cluster/membership/stage_node.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/host_name.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto waits = actors::usual_deadlines;
constexpr milliseconds look_every{50};            // for a node that ended while it was waited for
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
       .on_told = [this](const auto& name, const auto& told) { on_told(name, told); },
       .on_doubt =
           [this](const auto& name) {
             // Whether they are enough is found out of those that are lost: many may be silent.
             if (understudies_.suffice_beside(launcher_->host_of(name), 1)) launcher_->ask_agents();
           }},
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
  if (!understudies_core::is_one(who.name) && std::ranges::none_of(first_names_, is_of))
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

std::vector<std::string> node_group::hosts_of_places() const {
  std::vector<std::string> hosts;
  for (const auto& name : names_) hosts.push_back(launcher_->host_of(name));
  return hosts;
}

/// Makes certain that the lost node in this place has ended. It counts as lost until another one
/// has the place.
result<void> node_group::vacate(std::size_t place) {
  const auto& name = names_.at(place);
  if (vacated_.contains(name)) return {};  // before something else has failed
  const auto how = end_of({name});
  {
    const std::scoped_lock lock(mutex_);
    hung_.reset();
    lost_.emplace(name, how.value_or(error{errc::peer_lost, name + " is lost"}));
  }
  return give_up(name, how);
}

/// Another one may get its place from then on.
result<void> node_group::give_up(const std::string& name, const std::optional<error>& how) {
  vacated left{name, launcher_->host_of(name), how};
  if (auto ended = launcher_->give_up(name); !ended) return ended;
  const std::scoped_lock lock(mutex_);
  vacated_.emplace(name, std::move(left));
  return {};
}

/// In a place that was vacated. `later`: the hosts of those that are filled after it.
result<void> node_group::put_another(std::size_t place, const std::vector<std::string>& later) {
  const auto old = names_.at(place);
  const auto left = vacated_.at(old);
  const auto understudy = understudies_.take(left.host, later);
  auto by = understudy.value_or(old);
  {
    // A loss that comes after the question is told after `lost_` has forgotten an earlier one.
    const std::scoped_lock lock(mutex_);
    // Whoever was told to start one may be at it, or have done so a moment too late.
    if (!understudy && (!launcher_->starts_none() || node_->has_lost(old)))
      by = first_names_.at(place) + "." + std::to_string(++starts_.at(place));
    names_[place] = by;
    lost_.erase(old);
    vacated_.erase(old);
  }
  if (!understudy && !node_->wait_for(by, {}))
    if (auto begun = launcher_->start_on(left.host, by, node_->address()); !begun)
      return not_started(by, left, begun.error());
  const auto there = launcher_->host_of(by);
  if (there != left.host)
    log::warning(by + " takes the place of " + old + " on node " + there);
  else if (understudy)
    log::info(by + " takes the place of " + old);
  return {};
}

/// A node that the system has refused, for now perhaps, or that no host is left for, is lost like
/// one that has not joined, and its place is as it was left.
tl::unexpected<error> node_group::not_started(const std::string& name, const vacated& left,
                                              const error& why) {
  if (why.code != errc::peer_lost && why.code != errc::io_failed) return tl::unexpected(why);
  error refused{errc::peer_lost, why.text.starts_with(name) ? why.text : name + ": " + why.text};
  if (why.code == errc::peer_lost && left.how) refused.text = left.how->text + ", and " + why.text;
  const std::scoped_lock lock(mutex_);
  lost_.emplace(name, refused);
  vacated_.emplace(name, left);
  return tl::unexpected(std::move(refused));
}

result<void> node_group::replace(const std::vector<std::size_t>& places) {
  std::vector<std::string> fresh;
  const auto lose_all = [&](const error& why) -> result<void> {
    const std::scoped_lock lock(mutex_);
    for (const auto& each : fresh) lost_.emplace(each, why);
    // Also where one is only late: another may not be.
    return fail(errc::peer_lost, why.text);
  };
  // All of them first: with the host of one an understudy may be lost that another would get, and
  // where one has not ended nothing has begun that would have to be undone.
  for (const auto place : places)
    if (auto left = vacate(place); !left) return left;
  std::vector<std::string> later;
  for (const auto place : places) later.push_back(vacated_.at(names_[place]).host);
  for (const auto place : places) {
    later.erase(later.begin());
    if (auto put = put_another(place, later); !put) {
      static_cast<void>(lose_all(put.error()));
      return put;
    }
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
  if (understudies_.lost(name)) return launcher_->kill(name);
  // Before anybody asks who is lost.
  if (has_spares_for(name)) launcher_->give_up_unanswered(name);
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

/// Where not all have joined: who has is told the end like the others.
void node_group::find_hosts_of_joined() {
  for (const auto& name : names_) {
    if (!node_ || !node_->wait_for(name, {}) || loss_of({name})) continue;
    if (const auto host = node_->find(name, "host", waits.end)) hosts_.push_back(*host);
  }
}

node_group::~node_group() {
  understudies_.stop();
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
  // The trainer leaves last. But a node whose host was never found ends when we leave.
  if (!all_here) node_.reset();
  const bool in_order = !loss_of(names_) && !end_of(names_);
  if (auto buried = understudies_.bury(); !buried) log::warning(buried.error().text);
  launcher_->join(in_order);
  // What outlives us is connected until now, and its loss is told to members declared after it.
  node_.reset();
}

}  // namespace troupe::cluster
