#include "cluster/launch/agents/session_core.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "actors/base/deadlines.hpp"

namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t most_lines = 60;  // that are kept to explain an end
constexpr std::size_t most_quoted = 120;
// An agent says each second that it is alive, so the same time tells of it and of a process.
constexpr auto until_told = actors::usual_deadlines.tell_of_end;
constexpr auto most_quiet_at_end = actors::usual_deadlines.quiet_agent;
constexpr auto usual_start = actors::usual_deadlines.tell_of_start;
// Between ticks, of which there are ten in a second: we stood still where it was longer.
constexpr auto most_between_ticks = actors::usual_deadlines.unanswered_end / 3;
// TCP sends what was lost again after 0.2 s at the earliest.
constexpr auto late_answer = actors::usual_deadlines.unanswered_question / 2;

void keep(std::deque<std::string>& lines, std::string_view line) {
  if (line.empty()) return;
  lines.emplace_back(line.substr(0, line.find('\r')));
  if (lines.size() > most_lines) lines.pop_front();
}

std::string seconds_of(milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

/// "1.5 s"
std::string exact_seconds_of(milliseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

}  // namespace

std::string agent_place::text() const {
  return "node " + node + (host.empty() ? "" : " (" + host + ")");
}

std::string agent_place::trial() const {
  if (host.empty()) return program + " --help";
  if (carrier == "srun") return "srun --overlap --nodelist=" + host + " true";
  if (carrier == "mpirun") return "mpirun --host " + host + " true";
  return "ssh " + host + " true";
}

std::string agent_place::waiting(std::chrono::seconds time, const std::string& what) const {
  const std::string reached = host.empty() ? "it to " : carrier + " to reach it and to ";
  return text() + ": no answer for " + std::to_string(time.count()) + " s; waiting for " + reached +
         what;
}

session_core::session_core(agent_place place, milliseconds silence, milliseconds patience,
                           time_point now)
    : place_(std::move(place)),
      silence_(silence),
      patience_(patience),
      last_heard_(now),
      last_told_(now),
      last_tick_(now),
      stood_still_(now) {}

session_core::effects session_core::lose(errc code, std::string why) {
  if (state_ == state::over) return {};
  state_ = state::over;
  processes_.clear();
  return {lost{{code, std::move(why)}}};
}

session_core::effects session_core::heard(output_stream stream, std::string_view line,
                                          time_point now) {
  if (state_ == state::over) return {};
  if (stream == output_stream::out) {
    if (is_question_open() && now - *asked_ >= late_answer) answered_late_ = now;
    last_heard_ = now;
    return state_ == state::silent ? heard_before(stream, line) : heard_event(line);
  }
  if (state_ != state::ready) return heard_before(stream, line);
  return {show{"", stream, std::string(line)}};
}

session_core::effects session_core::heard_before(output_stream stream, std::string_view line) {
  keep(stream == output_stream::out ? shell_out_ : errors_, line);
  if (stream != output_stream::out) return {};
  const auto begin = line.find(agent_magic);
  if (begin == std::string_view::npos) return {};
  state_ = state::spoken;
  if (begin == 0) shell_out_.pop_back();
  if (shell_out_.empty()) return {};
  const auto quoted = shell_out_.front().substr(0, begin == 0 ? most_quoted : begin);
  return {warn{place_.text() + ": its login shell prints (\"" + quoted.substr(0, most_quoted) +
               "\"), also where nobody logs in; have its start-up file print in interactive shells "
               "alone"}};
}

session_core::effects session_core::heard_event(std::string_view line) {
  const auto event = decode_event(line);
  if (!event)
    return lose(errc::bad_frame, place_.text() + ": its agent wrote " + event.error().text);
  if (state_ == state::spoken) return heard_first(*event);
  if (const auto* text = std::get_if<events::line>(&*event))
    return {show{text->name, text->stream, text->text}};
  if (const auto* no = std::get_if<events::refused>(&*event)) {
    const bool names_it = no->why.starts_with(no->name + " ");
    return lose(errc::io_failed,
                place_.text() + ": " + (names_it ? "" : no->name + " was not started: ") + no->why);
  }
  if (std::holds_alternative<events::asked_to_end>(*event))
    return {send{orders::alive{}}, asked_to_end{}};
  if (const auto* got = std::get_if<events::signalled>(&*event)) return {signalled{got->signal}};
  if (const auto* last = std::get_if<events::ends>(&*event))
    return lose(errc::peer_lost, place_.text() + ": its agent has ended: " + last->why +
                                     "; its processes are ended with it");
  if (const auto* end = std::get_if<events::ended>(&*event)) {
    processes_.erase(end->name);
    return {process_ended{{end->name, end->pid, end->code, end->signal, end->lacked_memory}}};
  }
  return {};
}

session_core::effects session_core::garbled(const std::string& why) {
  return lose(errc::bad_frame, place_.text() + ": its agent's stream has " + why);
}

session_core::effects session_core::refuse(const std::string& why) {
  return lose(errc::bad_config, place_.text() + ": " + why);
}

session_core::effects session_core::has_not_ended(const std::string& process, milliseconds time) {
  return lose(errc::peer_lost, place_.text() + ": its agent has not ended " + process + " within " +
                                   exact_seconds_of(time) + "; all processes there are given up");
}

session_core::effects session_core::ask(time_point now) {
  if (state_ != state::ready || is_question_open()) return {};
  asked_ = now;
  return {send{orders::alive{}}};
}

session_core::effects session_core::give_up_unanswered(milliseconds time, time_point now) {
  if (!is_question_open() || now - *asked_ < time) return {};
  return lose(errc::peer_lost, place_.text() + ": " + carrier() + " has not answered within " +
                                   exact_seconds_of(time) +
                                   ", as others have; all processes there are given up");
}

bool session_core::answers_beside(const session_core& other, milliseconds time,
                                  time_point now) const noexcept {
  return state_ == state::ready && has_spoken_since(now - time) &&
         (!answered_late_ || !other.asked_ || *answered_late_ < *other.asked_);
}

session_core::effects session_core::heard_first(const agent_event& first) {
  const auto* who = std::get_if<events::hello>(&first);
  if (who == nullptr)
    return lose(errc::bad_frame, place_.text() + ": its agent did not say who it is");
  const std::string ours = ", as here (" + place_.own_program + ")";
  const auto refuse = [&](const std::string& what) {
    return lose(errc::bad_config, place_.text() + ": the program there (" + place_.program +
                                      ") is " + what + ours +
                                      "; copy the one that runs here to that host, or name its "
                                      "path with `program` in its [[node]]");
  };
  if (who->protocol != agent_protocol_version)
    return refuse("another version, with protocol " + std::to_string(who->protocol) +
                  " of the agent and not " + std::to_string(agent_protocol_version));
  if (who->build != place_.build)
    return refuse("another build, " + who->build + " and not " + place_.build);
  state_ = state::ready;
  const auto silence = static_cast<std::uint32_t>(silence_.count());
  return {send{orders::begin{silence}}, ready{*who}};
}

session_core::effects session_core::ended(const child_exit& how) {
  if (state_ == state::over) return {};
  if (ending_ && processes_.empty()) {
    state_ = state::over;
    return {};
  }
  if (state_ != state::ready) {
    auto why = explain_start(place_, how, errors_, shell_out_);
    return lose(why.code, std::move(why.text));
  }
  child_exit named = how;
  named.name = carrier();
  return lose(errc::peer_lost,
              place_.text() + ": " + describe(named) + "; its processes are ended with it");
}

std::string session_core::carrier() const {
  return place_.host.empty() ? "its agent" : "its agent, or the " + place_.carrier + " to it,";
}

session_core::effects session_core::tick(time_point now) {
  if (state_ == state::over) return {};
  // Where we ourselves stood still, what the agent said meanwhile is yet to be read.
  const auto since_tick = now - std::exchange(last_tick_, now);
  if (since_tick > most_between_ticks) stood_still_ = now;
  if (since_tick > silence_ / 2) last_heard_ = now;
  const auto quiet = std::chrono::duration_cast<milliseconds>(now - last_heard_);
  if (state_ != state::ready) return tick_before(quiet);
  if (quiet > silence_)
    return lose(errc::peer_lost, place_.text() + ": its agent has been silent for " +
                                     seconds_of(quiet) + "; its processes end by themselves; " +
                                     remedy_of_silence);
  if (ends_expected_ && !processes_.empty())
    if (auto what = tick_at_end(now); !what.empty()) return what;
  if (now - last_told_ < interval_of_words(silence_)) return {};
  last_told_ = now;
  return {send{orders::alive{}}};
}

session_core::effects session_core::tick_at_end(time_point now) {
  const auto quiet = std::min(now - last_heard_, now - *ends_expected_);
  if (quiet > most_quiet_at_end)
    return lose(errc::timed_out, place_.text() + ": " + carrier() + " has not answered for " +
                                     seconds_of(most_quiet_at_end) + " at the end of the run; " +
                                     fate_of_left());
  if (quiet < until_told) return tell_late(now);
  if (std::exchange(told_quiet_end_, true)) return {};
  return {wait{place_.text() + ": " + carrier() +
               " does not answer; at the end of the run it is waited for " +
               seconds_of(most_quiet_at_end) + " at most"}};
}

/// Of processes that an agent which is well waits for.
session_core::effects session_core::tell_late(time_point now) {
  if (now - *ends_expected_ < until_told || std::exchange(told_late_, true)) return {};
  effects out;
  for (const auto& each : processes_)
    out.emplace_back(wait{place_.text() + ": " + words_on_late_end(each)});
  return out;
}

std::string session_core::words_on_left(milliseconds time) const {
  return place_.text() + ": " + carrier() + " has not ended within " + seconds_of(time) + "; " +
         fate_of_left();
}

/// Ours is killed, and the kernel kills what it has started.
std::string session_core::fate_of_left() const {
  if (place_.host.empty()) return "it is killed, and its processes with it";
  return "its processes may be left there, and end by themselves once it goes on";
}

session_core::effects session_core::tick_before(milliseconds quiet) {
  if (quiet > patience_)
    return lose(errc::timed_out, place_.text() + ": no agent has answered within " +
                                     seconds_of(patience_) +
                                     (errors_.empty() ? "" : " (" + errors_.back() + ")") +
                                     "; see whether `" + place_.trial() + "` ends there");
  if (quiet < usual_start || std::exchange(told_wait_, true)) return {};
  return {wait{place_.waiting(usual_start, "start " + place_.program)}};
}

session_core::effects session_core::start(orders::start what) {
  processes_.insert(what.name);
  return {send{std::move(what)}};
}

session_core::effects session_core::resume(time_point now) {
  if (state_ == state::over) return {};
  last_heard_ = now;
  return {send{orders::resume{}}};
}

session_core::effects session_core::end(milliseconds grace) {
  if (state_ != state::ready || std::exchange(ending_, true)) return {};
  return {send{orders::end{static_cast<std::uint32_t>(grace.count())}}};
}

}  // namespace troupe::cluster
