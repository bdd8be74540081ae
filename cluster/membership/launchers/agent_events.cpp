#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "cluster/launch/agents/clock_words.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/launch/interrupt.hpp"
#include "cluster/membership/launchers/agent_session.hpp"
#include "messages/base/log.hpp"

/// What agents say, and what is made of it.
namespace troupe::cluster {

void agent_launcher::heard(std::string_view agent, output_stream stream, std::string_view line) {
  const std::lock_guard lock(mutex_);
  auto* const at = find(agent);
  if (at == nullptr) return;
  if (at->seal && stream == output_stream::out) return heard_sealed(*at, line);
  perform(*at, at->core.heard(stream, line, clock::now()));
}

void agent_launcher::heard_sealed(agent_session& at, std::string_view line) {
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
    const auto now = clock::now();
    perform(*each, each->core.tick(now));
    give_up_if_unanswered(*each, now);
    flush(*each);
  }
}

void agent_launcher::perform(agent_session& at, session_core::effects what) {
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

void agent_launcher::note_ready(agent_session& at, const events::hello& who) {
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

void agent_launcher::show_line(agent_session& at, const session_core::show& what) {
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
void agent_launcher::show_word(const agent_session& at, const std::string& process,
                               const std::string& word) {
  if (!word.empty()) print_line(process + " on " + at.what.name, output_stream::err, word);
}

void agent_launcher::note_end(agent_session& at, const child_exit& how) {
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
void agent_launcher::note_loss(agent_session& at, const error& why) {
  for (const auto& process : at.what.processes) show_word(at, process, at.words.take(process));
  // Nobody asks why a process has ended that is being replaced, and perhaps it was alone there.
  const bool is_told = is_joining_ || giving_up_ == &at;
  if (is_told) log::warning(why.text);
  if (expected_) return;
  if (at.cores == 0 && losses_.empty())
    losses_.push_back({{}, why});  // it has not begun
  else if (at.what.processes.empty())
    log::warning(why.text);  // all have been replaced
  for (const auto& process : at.what.processes)
    if (std::ranges::find(losses_, process, &node_end::node) == losses_.end())
      losses_.push_back({process, why, is_told});
}

void agent_launcher::flush(agent_session& to) const {
  while (!to.unsent.empty() && to.input) {
    const auto count = ::write(to.input.get(), to.unsent.data(), to.unsent.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // the next tick tries again; a stream that is closed is noticed
    forget_front(to.unsent, static_cast<std::size_t>(count));
  }
}

}  // namespace troupe::cluster
