#include "cluster/membership/agent_launcher.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/remote/ticker.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/launch/agents/clock_words.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "cluster/launch/agents/stream_seal.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/interrupt.hpp"
#include "cluster/launch/node_logs.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/launch/pipe_ends.hpp"
#include "cluster/membership/agent_start.hpp"
#include "cluster/membership/log_end.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto tick_every = 100ms;

/// One agent. Guarded by the launcher's mutex.
struct session {
  agent_host what;
  session_core core;
  std::unique_ptr<stream_seal> seal;  // where a scheduler carries the stream
  descriptor input;                   // of the agent; non-blocking
  std::string unsent;                 // to it
  last_words words;
  std::map<std::string, std::string> last_error;  // of each process: its last line on stderr
  std::uint32_t cores = 0;
};

class agent_launcher final : public node_launcher {
 public:
  agent_launcher(process_link link, agent_settings settings, node_logs logs)
      : link_(std::move(link)), settings_(std::move(settings)), logs_(std::move(logs)) {}
  agent_launcher(const agent_launcher&) = delete;
  agent_launcher& operator=(const agent_launcher&) = delete;
  ~agent_launcher() override {
    ticker_.reset();
    group_.reset();  // kills what is left; its thread calls into this object
  }

  /// Starts the agents and waits until all of them take orders.
  result<void> open();

  actors::link_factory trainer_link() override { return process_link_factory(link_); }
  result<void> start(const std::string& name, const std::string& trainer) override;
  result<void> start_on(const std::string& host, const std::string& name,
                        const std::string& trainer) override;
  result<void> invite(int socket, const std::string& trainer) override {
    return invite_over(link_, socket, trainer);
  }
  result<void> give_up(const std::string& name) override;
  std::vector<node_end> ends() const override;
  std::string host_of(const std::string& name) const override;
  std::string place_of(const std::string& name) const override;
  void expect_ends() override;
  void join(bool in_order) override;
  void kill() override;
  void kill(const std::string& name) override;
  void suspend() override;
  void resume() override;

 private:
  result<void> start_agent(const agent_host& host, const std::string& build);
  [[nodiscard]] std::vector<std::string> arguments_of(const session& at, const std::string& name,
                                                      const std::string& trainer) const;
  void heard(std::string_view agent, output_stream stream, std::string_view line);
  void ended(const child_exit& how);
  void tick();

  /// A process that has ended, or whose agent is lost, and why; without a name: an agent that has
  /// not begun.
  // Under the lock:
  [[nodiscard]] session* find(std::string_view agent);
  [[nodiscard]] session* host_of_process(const std::string& name) const;
  [[nodiscard]] session* roomiest() const;
  void start_on(session& at, const std::string& name, const std::string& trainer);
  void note_loss(session& at, const error& why);
  void heard_sealed(session& at, std::string_view line);
  void perform(session& at, session_core::effects what);
  void flush(session& to) const;
  void note_ready(session& at, const events::hello& who);
  void show_line(session& at, const session_core::show& what);
  static void show_word(const session& at, const std::string& process, const std::string& word);
  void note_end(session& at, const child_exit& how);
  void tell_left(std::chrono::milliseconds time) const;

  const process_link link_;
  const agent_settings settings_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<session>> sessions_;
  node_logs logs_;
  std::vector<node_end> losses_;  // of what was not replaced, in their order
  bool expected_ = false;         // told to end: what comes now is no failure
  bool is_joining_ = false;       // in order: what comes now is no failure, but is told
  std::optional<process_group> group_;
  std::unique_ptr<actors::ticker> ticker_;
};

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
  auto made = agent_child(settings_, host);
  if (!made) return tl::unexpected(made.error());
  child_spec child = std::move(*made);
  auto seal = agent_seal(settings_, host);
  if (!seal) return tl::unexpected(seal.error());
  auto ends = open_pipe();
  if (!ends) return tl::unexpected(ends.error());
  ::fcntl(ends->write.get(), F_SETFL, O_NONBLOCK);
  child.standard_input = ends->read.get();
  {
    const std::lock_guard lock(mutex_);
    sessions_.push_back(std::make_unique<session>(
        session{host,
                session_core({host.name, host.host, build, program_on(host),
                              carrier_name(settings_.carrier), own_program().string()},
                             settings_.silence, settings_.patience, clock::now()),
                std::move(*seal),
                std::move(ends->write),
                {},
                {},
                {},
                0}));
  }
  return group_->start(child).map_error([&](error why) {
    why.text.insert(0, agent_place{host.name, host.host, "", "", ""}.text() + ": ");
    if (host.host.empty() && !host.program.empty()) why.text += "; see `program` in its [[node]]";
    return why;
  });
}

session* agent_launcher::find(std::string_view agent) {
  for (const auto& each : sessions_)
    if (each->what.name == agent) return each.get();
  return nullptr;
}

session* agent_launcher::host_of_process(const std::string& name) const {
  for (const auto& each : sessions_)
    if (std::ranges::find(each->what.processes, name) != each->what.processes.end())
      return each.get();
  return nullptr;
}

void agent_launcher::heard(std::string_view agent, output_stream stream, std::string_view line) {
  const std::lock_guard lock(mutex_);
  auto* const at = find(agent);
  if (at == nullptr) return;
  if (at->seal && stream == output_stream::out) return heard_sealed(*at, line);
  perform(*at, at->core.heard(stream, line, clock::now()));
}

void agent_launcher::heard_sealed(session& at, std::string_view line) {
  const auto what = at.seal->take(line);
  if (!what) return perform(at, at.core.garbled(what.error().text));
  if (what->clear)
    return perform(at, at.core.heard(output_stream::out, *what->clear, clock::now()));
  at.unsent += what->answer;
  flush(at);
}

void agent_launcher::ended(const child_exit& how) {
  const std::lock_guard lock(mutex_);
  if (auto* at = find(how.name)) perform(*at, at->core.ended(how));
  changed_.notify_all();
}

void agent_launcher::tick() {
  const std::lock_guard lock(mutex_);
  for (const auto& each : sessions_) {
    perform(*each, each->core.tick(clock::now()));
    flush(*each);
  }
}

void agent_launcher::perform(session& at, session_core::effects what) {
  for (auto& effect : what) {
    if (auto* send = std::get_if<session_core::send>(&effect)) {
      at.unsent += at.seal ? at.seal->seal(encode(send->what)) : encode(send->what) + "\n";
      if (auto* start = std::get_if<orders::start>(&send->what)) forget(start->secret);
      flush(at);
    } else if (const auto* ready = std::get_if<session_core::ready>(&effect)) {
      note_ready(at, ready->who);
    } else if (const auto* show = std::get_if<session_core::show>(&effect)) {
      show_line(at, *show);
    } else if (const auto* harmless = std::get_if<session_core::warn>(&effect)) {
      if (settings_.watch.arguments)
        settings_.watch.on_warning(harmless->text);
      else
        log::warning(harmless->text);
    } else if (const auto* waits = std::get_if<session_core::wait>(&effect)) {
      log::info(waits->text);
    } else if (const auto* end = std::get_if<session_core::process_ended>(&effect)) {
      note_end(at, end->how);
    } else if (std::holds_alternative<session_core::asked_to_end>(effect)) {
      if (!expected_) interrupt_guard::ask_to_stop(SIGTERM);
    } else if (const auto* got = std::get_if<session_core::signalled>(&effect)) {
      interrupt_guard::pass_on_other(got->signal);
    } else if (const auto* lost = std::get_if<session_core::lost>(&effect)) {
      note_loss(at, lost->why);
      if (settings_.watch.arguments) settings_.watch.on_lost(lost->why);
      at.input.reset();
      group_->kill(at.what.name);
      changed_.notify_all();
    }
  }
}

void agent_launcher::note_ready(session& at, const events::hello& who) {
  log::debug(at.core.place().text() + ": " + who.host + ", " + std::to_string(who.cores) +
             " cores, " + std::to_string(who.memory_bytes >> 20) + " MiB of memory");
  const auto& threads = at.what.threads;
  if (has_absurd_threads(threads.most, who.cores))
    return perform(at, at.core.refuse(threads.setting + ": " +
                                      words_on_absurd_threads(threads.most, who.cores)));
  if (const auto words = words_on_threads(threads, who.cores); !words.empty())
    log::warning(at.core.place().text() + ": " + words);
  // The doctor measures clocks, and more exactly.
  const auto told = settings_.watch.arguments ? 0 : who.clock_ns;
  if (const auto words = words_on_told_clock(told, wall_clock_ns()); !words.empty())
    log::warning(at.core.place().text() + ": " + words);
  at.what.addresses = who.addresses;
  at.cores = who.cores;  // it has begun
  changed_.notify_all();
}

void agent_launcher::show_line(session& at, const session_core::show& what) {
  if (settings_.watch.arguments && !what.process.empty())
    return settings_.watch.on_line(what.process, what.stream, what.text);
  const auto word =
      what.process.empty() ? std::nullopt : at.words.heard(what.process, what.stream, what.text);
  logs_.write(at.what.name, what.process, word ? *word : what.text);
  if (word) return;
  if (what.stream == output_stream::err) at.last_error[what.process] = what.text;
  print_line(what.process.empty() ? at.what.name : what.process + " on " + at.what.name,
             what.stream, what.text);
}

/// Of what a process has said last, where no loss says it.
void agent_launcher::show_word(const session& at, const std::string& process,
                               const std::string& word) {
  if (!word.empty()) print_line(process + " on " + at.what.name, output_stream::err, word);
}

void agent_launcher::note_end(session& at, const child_exit& how) {
  if (settings_.watch.arguments) return settings_.watch.on_end(how);
  child_exit named = how;
  named.name += " on " + at.core.place().text();
  log_end(named, expected_);
  logs_.write(at.what.name, {}, describe(how));
  auto word = at.words.take(how.name);
  if (expected_) {
    show_word(at, how.name, word);
  } else {
    const bool is_told = !word.empty() && !is_reason(how.name, losses_);
    const auto said = at.last_error.find(how.name);
    const bool explains = word.empty() && how.signal == 0 && how.code != 0;
    if (explains && said != at.last_error.end()) word = said->second;
    losses_.push_back({how.name, loss_of(named, word), is_told});
    if (is_told) log::warning(losses_.back().how.text);
  }
  changed_.notify_all();
}

/// Of an agent, and so of its processes.
void agent_launcher::note_loss(session& at, const error& why) {
  for (const auto& process : at.what.processes) show_word(at, process, at.words.take(process));
  if (is_joining_) log::warning(why.text);
  if (expected_) return;
  if (at.cores == 0 && losses_.empty())
    losses_.push_back({{}, why});  // it has not begun
  else if (at.what.processes.empty())
    log::warning(why.text);  // all have been replaced
  for (const auto& process : at.what.processes)
    if (std::ranges::find(losses_, process, &node_end::node) == losses_.end())
      losses_.push_back({process, why});
}

void agent_launcher::flush(session& to) const {
  while (!to.unsent.empty() && to.input) {
    const auto count = ::write(to.input.get(), to.unsent.data(), to.unsent.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // the next tick tries again; a stream that is closed is heard of
    forget_front(to.unsent, static_cast<std::size_t>(count));
  }
}

std::vector<std::string> agent_launcher::arguments_of(const session& at, const std::string& name,
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

void agent_launcher::start_on(session& at, const std::string& name, const std::string& trainer) {
  perform(at, at.core.start({.name = name,
                             .arguments = arguments_of(at, name, trainer),
                             .environment = at.what.environment,
                             .working_folder = at.what.working_folder.string(),
                             .secret = to_digits(link_.secret)}));
}

/// Of the agents that are there, the one whose processes share its cores with the fewest.
session* agent_launcher::roomiest() const {
  session* best = nullptr;
  const auto share = [](const session& each) {
    return static_cast<double>(each.what.processes.size() + 1) / std::max(1U, each.cores);
  };
  for (const auto& each : sessions_)
    if (each->core.is_ready() && (best == nullptr || share(*each) < share(*best)))
      best = each.get();
  return best;
}

result<void> agent_launcher::give_up(const std::string& name) {
  std::unique_lock lock(mutex_);
  auto* const at = host_of_process(name);
  if (at == nullptr) return fail(errc::bad_config, name + " is on none of the nodes");
  if (at->core.is_ready()) perform(*at, {session_core::send{orders::kill{name}}});
  if (!changed_.wait_for(lock, settings_.silence,
                         [&] { return !at->core.processes().contains(name); }))
    perform(*at, at->core.has_not_ended(name, settings_.silence));
  std::erase_if(losses_, [&](const auto& each) { return each.node == name; });
  std::erase(at->what.processes, name);
  return {};
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

}  // namespace

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
