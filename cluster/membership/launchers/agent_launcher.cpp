#include "cluster/membership/launchers/agent_launcher.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/launch/pipe_ends.hpp"
#include "cluster/membership/launchers/agent_session.hpp"
#include "cluster/membership/launchers/agent_start.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;

constexpr auto tick_every = 100ms;

}  // namespace

result<void> agent_launcher::open() {
  std::uint64_t files = own_files + files_an_agent * settings_.hosts.size();
  for (const auto& host : settings_.hosts) files += files_a_process * host.processes.size();
  if (auto room = allow_open_files(files); !room) return room;
  const auto build = program_build();
  if (!build) return tl::unexpected(build.error());
  auto group = process_group::create(
      {.on_exit = [this](const child_exit& how) { ended(how); },
       .on_line = [this](std::string_view name, output_stream stream,
                         std::string_view line) { heard(name, stream, line); }});
  if (!group) return tl::unexpected(group.error());
  group_.emplace(std::move(*group));
  for (const auto& host : settings_.hosts)
    if (auto started = start_agent(host, *build); !started) return started;
  ticker_ = std::make_unique<actors::ticker>(tick_every, [this] { tick(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {  // the cores bound it: see agent_settings::patience
    return !losses_.empty() ||
           std::ranges::all_of(sessions_, [](const auto& each) { return each->core.is_ready(); });
  });
  if (!losses_.empty()) return tl::unexpected(losses_.front().how);
  std::vector<agent_host*> hosts;
  for (const auto& each : sessions_) hosts.push_back(&each->what);
  lock.unlock();  // names are resolved, and no process that would need a place is started yet
  if (const auto words = choose_listening(hosts, settings_); !words.empty()) log::info(words);
  return {};
}

result<void> agent_launcher::start_agent(const agent_host& host, const std::string& build) {
  auto child = agent_child(settings_, host);
  if (!child) return tl::unexpected(child.error());
  auto seal = agent_seal(settings_, host);
  if (!seal) return tl::unexpected(seal.error());
  auto ends = open_pipe();
  if (!ends) return tl::unexpected(ends.error());
  ::fcntl(ends->write.get(), F_SETFL, O_NONBLOCK);
  child->standard_input = ends->read.get();
  {
    const std::lock_guard lock(mutex_);
    sessions_.push_back(std::make_unique<agent_session>(
        agent_session{host,
                      session_core({host.name, host.host, build, program_on(host),
                                    carrier_name(settings_.carrier), own_program().string()},
                                   settings_.silence, settings_.patience, clock::now()),
                      std::move(*seal), std::move(ends->write)}));
  }
  return group_->start(*child).map_error([&](const error& why) {
    error told = error_about(agent_place{host.name, host.host, "", "", ""}.text(), why);
    if (host.host.empty() && !host.program.empty()) told.text += "; see `program` in its [[node]]";
    return told;
  });
}

agent_session* agent_launcher::find(std::string_view agent) {
  for (const auto& each : sessions_)
    if (each->what.name == agent) return each.get();
  return nullptr;
}

agent_session* agent_launcher::host_of_process(const std::string& name) const {
  for (const auto& each : sessions_)
    if (std::ranges::find(each->what.processes, name) != each->what.processes.end())
      return each.get();
  return nullptr;
}

std::vector<std::string> agent_launcher::arguments_of(const agent_session& at,
                                                      const std::string& name,
                                                      const std::string& trainer) const {
  if (settings_.watch.arguments) return settings_.watch.arguments(trainer);
  return to_arguments({.join = trainer,
                       .name = name,
                       .transport = link_.transport,
                       .network = link_.network,
                       .listen = at.what.listen,
                       .verbose = settings_.verbose,
                       .secret_descriptor = handed_over_as,
                       .secret_file = {}});
}

result<void> agent_launcher::start(const std::string& name, const std::string& trainer) {
  const std::lock_guard lock(mutex_);
  if (!losses_.empty()) return tl::unexpected(losses_.front().how);
  auto* const at = host_of_process(name);
  if (at == nullptr) return fail(errc::bad_config, name + " is on none of the nodes");
  start_on(*at, name, trainer);
  return {};
}

void agent_launcher::start_on(agent_session& at, const std::string& name,
                              const std::string& trainer) {
  perform(at, at.core.start({.name = name,
                             .arguments = arguments_of(at, name, trainer),
                             .environment = at.what.environment,
                             .working_folder = at.what.working_folder.string(),
                             .secret = to_digits(link_.secret)}));
}

/// Of the agents that are there, the one whose processes share its cores with the fewest.
agent_session* agent_launcher::roomiest() const {
  agent_session* best = nullptr;
  const auto share = [](const agent_session& each) {
    return static_cast<double>(each.what.processes.size() + 1) / std::max(1U, each.cores);
  };
  for (const auto& each : sessions_)
    if (each->core.is_ready() && (best == nullptr || share(*each) < share(*best)))
      best = each.get();
  return best;
}

/// Whether another agent can run what this one ran. Where none has spoken since then either, it may
/// be our own network that is cut.
bool agent_launcher::has_others_than(const agent_session& one, clock::time_point since) const {
  return std::ranges::any_of(sessions_, [&](const auto& each) {
    return each.get() != &one && each->core.is_ready() && each->core.has_spoken_since(since);
  });
}

result<void> agent_launcher::give_up(const std::string& name) {
  std::unique_lock lock(mutex_);
  auto* const at = host_of_process(name);
  if (at == nullptr) return fail(errc::bad_config, name + " is on none of the nodes");
  const auto asked = clock::now();
  giving_up_ = at;
  if (at->core.is_ready()) perform(*at, {session_core::send{orders::kill{name}}});
  const auto has_ended_within = [&](std::chrono::milliseconds time) {
    return changed_.wait_until(lock, asked + time,
                               [&] { return !at->core.processes().contains(name); });
  };
  const auto early = std::min(settings_.silence, actors::usual_deadlines.unanswered_end);
  if (!has_ended_within(early)) {
    perform(*at, at->core.tick(clock::now()));  // we may have stood still until now
    const auto lately = asked - interval_of_words(settings_.silence);
    const bool is_early = at->core.has_been_silent_since(asked) && has_others_than(*at, lately);
    const auto patience = is_early ? early : settings_.silence;
    if (!has_ended_within(patience)) perform(*at, at->core.has_not_ended(name, patience));
  }
  giving_up_ = nullptr;
  std::erase_if(losses_, [&](const auto& each) { return each.node == name; });
  std::erase(at->what.processes, name);
  return {};
}

void agent_launcher::ask_agents() {
  const std::lock_guard lock(mutex_);
  for (const auto& each : sessions_) perform(*each, each->core.ask(clock::now()));
}

void agent_launcher::give_up_unanswered(const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto* const at = host_of_process(name);
  if (at == nullptr) return;
  const auto now = clock::now();
  perform(*at, at->core.tick(now));  // we may have stood still until now
  if (at->core.is_question_open()) at->in_doubt = now;
  give_up_if_unanswered(*at, now);
}

/// What an agent of this machine says tells nothing of the network that leads to another one. The
/// others are asked again and again meanwhile: they may be silenced too by now.
void agent_launcher::give_up_if_unanswered(agent_session& at, clock::time_point now) {
  constexpr auto patience = actors::usual_deadlines.unanswered_question;
  if (!at.in_doubt) return;
  if (expected_ || at.core.is_over() || !at.core.has_been_silent_since(*at.in_doubt))
    return at.in_doubt.reset();
  const bool answers_another = std::ranges::any_of(sessions_, [&](const auto& each) {
    const bool is_as_far = at.what.host.empty() || !each->what.host.empty();
    return each.get() != &at && is_as_far && each->core.answers_beside(at.core, patience, now);
  });
  if (answers_another) perform(at, at.core.give_up_unanswered(patience, now));
  for (const auto& each : sessions_) perform(*each, each->core.ask(now));
}

result<void> agent_launcher::start_on(const std::string& host, const std::string& name,
                                      const std::string& trainer) {
  const std::lock_guard lock(mutex_);
  auto* at = find(host);
  if (at == nullptr || !at->core.is_ready()) at = roomiest();
  if (at == nullptr) return fail(errc::peer_lost, "no other node is left");
  at->what.processes.push_back(name);
  start_on(*at, name, trainer);
  return {};
}

std::vector<node_end> agent_launcher::ends() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

std::string agent_launcher::host_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto* const at = host_of_process(name);
  return at == nullptr ? std::string() : at->what.name;
}

std::string agent_launcher::place_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto* const at = host_of_process(name);
  return at == nullptr ? name : name + " on " + at->core.place().text();
}

void agent_launcher::expect_ends() {
  const std::lock_guard lock(mutex_);
  expected_ = true;
}

void agent_launcher::join(bool in_order) {
  std::unique_lock lock(mutex_);
  const bool patient = in_order && losses_.empty();
  const auto idle = [this] {
    return std::ranges::all_of(sessions_,
                               [](const auto& each) { return each->core.processes().empty(); });
  };
  if (patient) {
    is_joining_ = true;
    for (const auto& each : sessions_) each->core.expect_ends(clock::now());
    changed_.wait_for(lock, actors::usual_deadlines.end, idle);
    is_joining_ = false;
  }
  for (const auto& each : sessions_)
    perform(*each, each->core.end(patient ? actors::usual_deadlines.agent_processes : 0s));
  lock.unlock();
  const auto most =
      patient ? actors::usual_deadlines.agent_processes + actors::usual_deadlines.agent_end
              : actors::usual_deadlines.agent_end;
  if (group_->wait(most)) return;
  tell_left(most);
  group_->terminate_all(0ms);
}

/// Agents that have not ended, though they were told to.
void agent_launcher::tell_left(std::chrono::milliseconds time) const {
  const std::lock_guard lock(mutex_);
  if (settings_.watch.arguments) return;
  for (const auto& each : sessions_)
    if (!each->core.is_over()) log::warning(each->core.words_on_left(time));
}

/// Agents end with their streams.
void agent_launcher::kill() {
  {
    const std::lock_guard lock(mutex_);
    is_joining_ = false;
  }
  group_->kill();
}

void agent_launcher::kill(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (auto* at = host_of_process(name)) perform(*at, {session_core::send{orders::kill{name}}});
}

void agent_launcher::suspend() {
  const std::lock_guard lock(mutex_);
  for (const auto& each : sessions_) perform(*each, {session_core::send{orders::suspend{}}});
}

void agent_launcher::resume() {
  const std::lock_guard lock(mutex_);
  for (const auto& each : sessions_) perform(*each, each->core.resume(clock::now()));
}

result<std::unique_ptr<node_launcher>> make_agent_launcher(process_link link,
                                                           agent_settings settings) {
  if (auto pushed = push_program(settings); !pushed) return tl::unexpected(pushed.error());
  std::vector<std::string> nodes;
  for (const auto& host : settings.hosts) nodes.push_back(host.name);
  auto logs = node_logs::open(settings.logs, nodes);
  if (!logs) return tl::unexpected(logs.error());
  auto made =
      std::make_unique<agent_launcher>(std::move(link), std::move(settings), std::move(*logs));
  if (auto open = made->open(); !open) return tl::unexpected(open.error());
  return made;
}

}  // namespace troupe::cluster
