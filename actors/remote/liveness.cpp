#include "actors/remote/liveness.hpp"

#include <algorithm>

#include "messages/base/format.hpp"

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds pause_is_remembered{5};

}  // namespace

std::string in_seconds(liveness::clock::duration time) {
  return format("%.1f s", std::chrono::duration<double>(time).count());
}

void liveness::node_up(const std::string& node, const process_identity& where) {
  peers_.insert_or_assign(node, peer{.where = where});
}

void liveness::node_down(const std::string& node) {
  peers_.erase(node);
}

void liveness::heard(const std::string& node) {
  if (const auto found = peers_.find(node); found != peers_.end()) found->second.silent = {};
}

liveness::effects liveness::tick(clock::time_point now) {
  const auto elapsed = last_tick_ ? now - *last_tick_ : settings_.interval;
  last_tick_ = now;
  if (elapsed >= noticeable_pause()) {
    pause_ = elapsed;
    pause_until_ = now + pause_is_remembered;
  }
  const bool on_time = elapsed < 2 * settings_.interval;
  const bool counts = elapsed >= settings_.interval / 2;
  effects out;
  for (auto& [node, who] : peers_) {
    out.emplace_back(beat{node});
    if (counts) who.silent += settings_.interval;
    if (!on_time) continue;
    const bool is_suspect = who.silent >= settings_.suspicion;
    if (is_of_this_host(who) && is_suspect) {
      out.emplace_back(examine{node, who.where});
    } else {
      if (is_suspect) out.emplace_back(doubt{node});
      lose_if_silent(node, who, settings_.silence, out);
    }
  }
  forget_lost(out);
  return out;
}

liveness::effects liveness::examined(const std::string& node, process_state state) {
  effects out;
  const auto found = peers_.find(node);
  if (found == peers_.end()) return out;
  auto& who = found->second;
  const auto lose = [&](const char* what) {
    out.emplace_back(lost{node,
                          {errc::peer_lost, "its process " + std::to_string(who.where.pid) + what +
                                                ", and was silent for " + in_seconds(who.silent)}});
  };
  switch (state) {
    case process_state::stopped:
      lose(" is stopped");
      break;
    case process_state::gone:
      lose(" has ended");
      break;
    case process_state::traced:  // whoever debugs it decides
      who.silent = {};
      break;
    case process_state::alive:
      lose_if_silent(node, who,
                     is_of_this_network(who) ? settings_.starved_silence : settings_.silence, out);
      break;
    case process_state::unknown:
      lose_if_silent(node, who, settings_.silence, out);
      break;
  }
  forget_lost(out);
  return out;
}

void liveness::lose_if_silent(const std::string& node, const peer& who, clock::duration limit,
                              effects& out) const {
  if (who.silent < limit) return;
  out.emplace_back(lost{
      node,
      {errc::timed_out, "it was silent for " + in_seconds(who.silent) +
                            ", and owes a heartbeat every " + in_seconds(settings_.interval)}});
}

void liveness::forget_lost(const effects& of) {
  for (const auto& each : of) {
    if (const auto* gone = std::get_if<lost>(&each)) peers_.erase(gone->node);
  }
}

bool liveness::is_of_this_host(const peer& who) const {
  return settings_.ask_system && !self_.host.empty() && who.where.host == self_.host;
}

bool liveness::is_of_this_network(const peer& who) const {
  return !self_.network.empty() && who.where.network == self_.network;
}

/// Our last heartbeat went out up to one interval before we stood still.
milliseconds liveness::noticeable_pause() const {
  return settings_.suspicion - settings_.interval;
}

std::optional<milliseconds> liveness::stood_still(clock::time_point now) const {
  if (!last_tick_) return std::nullopt;
  auto longest = now - *last_tick_;
  if (now <= pause_until_) longest = std::max(longest, pause_);
  if (longest < noticeable_pause()) return std::nullopt;
  return std::chrono::duration_cast<milliseconds>(longest);
}

}  // namespace troupe::actors
