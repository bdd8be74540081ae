#include "cluster/launch/agents/agent_core.hpp"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;

}  // namespace

agent_core::agent_core(events::hello self, time_point now)
    : self_(std::move(self)), last_heard_(now), last_told_(now), last_tick_(now) {}

milliseconds agent_core::interval() const {
  return interval_of_words(silence_);
}

agent_core::effects agent_core::begin() {
  return {tell{self_}};
}

agent_core::effects agent_core::heard(std::string_view line, time_point now) {
  last_heard_ = now;
  asked_.reset();
  if (ending_) return {};
  const auto order = decode_order(line);
  if (!order) return cut_off("the launcher wrote " + order.error().text);
  if (!begun_ && !std::holds_alternative<orders::begin>(*order))
    return cut_off("the launcher did not begin with its first order");
  return obey(*order);
}

agent_core::effects agent_core::obey(const agent_order& order) {
  if (const auto* first = std::get_if<orders::begin>(&order)) {
    begun_ = true;
    silence_ = milliseconds(first->silence_ms);
  } else if (const auto* wanted = std::get_if<orders::start>(&order)) {
    if (is_there(wanted->name)) return {tell{events::refused{wanted->name, "it runs already"}}};
    starting_.insert(wanted->name);
    return {launch{*wanted}};
  } else if (const auto* doomed = std::get_if<orders::kill>(&order)) {
    // An answer at once: the process may take its time to end, or to begin.
    if (is_there(doomed->name)) return {tell{events::alive{}}, kill{doomed->name}};
  } else if (std::holds_alternative<orders::alive>(order)) {
    return {tell{events::alive{}}};
  } else if (std::holds_alternative<orders::suspend>(order)) {
    suspended_ = true;
    return {suspend_all{}};
  } else if (std::holds_alternative<orders::resume>(order)) {
    suspended_ = false;
    return {resume_all{}};
  } else if (const auto* last = std::get_if<orders::end>(&order)) {
    return end(milliseconds(last->grace_ms), "");
  }
  return {};
}

agent_core::effects agent_core::cut_off(const std::string& why) {
  effects out;
  if (begun_ && !ending_) out.emplace_back(tell{events::ends{why}});
  std::ranges::move(end(milliseconds{0}, why), std::back_inserter(out));
  return out;
}

agent_core::effects agent_core::asked_by(int signal) {
  return cut_off(name_of_signal(signal) + " asked it to end");
}

agent_core::effects agent_core::asked_to_end(time_point now) {
  if (!begun_) return asked_by(SIGTERM);
  if (ending_) return {};
  if (!asked_) asked_ = now;
  return {tell{events::asked_to_end{}}};
}

agent_core::effects agent_core::signalled(int signal) const {
  if (!begun_ || ending_) return {};
  return {tell{events::signalled{signal}}};
}

// Calling again can only shorten the grace.
agent_core::effects agent_core::end(milliseconds grace, const std::string& why) {
  if (left_) return {};
  if (!ending_) ending_ = why;
  effects out{end_all{grace}};
  std::ranges::move(leave_if_done(), std::back_inserter(out));
  return out;
}

agent_core::effects agent_core::leave_if_done() {
  if (!ending_ || !running_.empty() || !starting_.empty() || std::exchange(left_, true)) return {};
  return {leave{*ending_}};
}

bool agent_core::is_there(const std::string& process) const {
  return running_.contains(process) || starting_.contains(process);
}

agent_core::effects agent_core::started(const std::string& name) {
  starting_.erase(name);
  running_.insert(name);
  return {tell{events::started{name}}};
}

agent_core::effects agent_core::refused(const std::string& name, const std::string& why) {
  starting_.erase(name);
  effects out{tell{events::refused{name, why}}};
  std::ranges::move(leave_if_done(), std::back_inserter(out));
  return out;
}

agent_core::effects agent_core::wrote(std::string_view name, output_stream stream,
                                      std::string_view text) {
  effects out;
  do {
    const auto piece = text.substr(0, most_text_bytes);
    text.remove_prefix(piece.size());
    out.emplace_back(tell{events::line{std::string(name), stream, std::string(piece)}});
  } while (!text.empty());
  return out;
}

agent_core::effects agent_core::ended(const child_exit& how) {
  running_.erase(how.name);
  effects out{tell{events::ended{how.name, how.pid, how.code, how.signal, how.lacked_memory}}};
  std::ranges::move(leave_if_done(), std::back_inserter(out));
  return out;
}

agent_core::effects agent_core::tick(time_point now) {
  if (ending_) return {};
  // Where we ourselves stood still, what the launcher said meanwhile is yet to be read.
  const bool stood_still = now - std::exchange(last_tick_, now) > silence_ / 2;
  if (suspended_ || stood_still) last_heard_ = now;
  if (asked_ && stood_still) asked_ = now;
  if (asked_ && now - *asked_ > actors::usual_deadlines.agent_asks)
    return cut_off(name_of_signal(SIGTERM) + " asked it to end, and its launcher is gone");
  if (now - last_heard_ > silence_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - last_heard_);
    return cut_off("nothing heard from the launcher for " + std::to_string(seconds.count()) + " s");
  }
  if (!begun_ || now - last_told_ < interval()) return {};
  last_told_ = now;
  return {tell{events::alive{}}};
}

}  // namespace troupe::cluster
