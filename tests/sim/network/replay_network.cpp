#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "actors/base/deadlines.hpp"
#include "tests/sim/replay_company.hpp"

// Processes that are taken for lost and live, and ways between two that are cut. Who has lost whom,
// who is to go and what is still listened to is what the cores say that nodes and the trainer have.

namespace troupe::tests {

using actors::liveness;

namespace {

/// A process that was taken for lost lives on for less than 2^14 ms, mostly for much less.
constexpr std::uint32_t most_doublings = 15;

liveness::clock::time_point time_of(std::uint64_t now) {
  return liveness::clock::time_point(std::chrono::milliseconds(now));
}

std::uint32_t between_heartbeats() {
  return static_cast<std::uint32_t>(actors::liveness_settings().interval.count());
}

}  // namespace

std::uint64_t replay_company::life_in_doubt() {
  return below(1U << below(most_doublings));
}

replay_company::process_id replay_company::node_of(const process_id& actor) const {
  if (nodes_.empty()) return actor;
  if (actor.stage == stages_) return feeder_nodes_.at(actor.start);
  const auto found = nodes_of_.find(actor);
  return found == nodes_of_.end() ? holder(actor.stage) : found->second;
}

bool replay_company::lives(const process_id& node) const {
  return node == trainer() || keepers_.contains(node);
}

bool replay_company::has_lost(const process_id& node, const process_id& other) const {
  const auto here = nodes_.find(node), there = nodes_.find(other);
  return here != nodes_.end() && there != nodes_.end() &&
         here->second.others.lost(there->second.name).has_value();
}

bool replay_company::is_over() const {
  return finished_ == sequence_.size() && !is_returning_ && !is_replacing_;
}

void replay_company::open_nodes() {
  if (options_.doubts.empty() && options_.cuts.empty()) return;
  open_node(trainer());
  for (std::uint32_t place = 0; place < stages_; ++place) open_node(holder(place));
}

/// It is connected to all others that live.
void replay_company::open_node(const process_id& id) {
  const auto name = id == trainer()
                        ? std::string("trainer")
                        : "stage-" + std::to_string(id.stage) + "." + std::to_string(id.start);
  peer_node made{.name = name,
                 .others = actors::neighbourhood(name, ""),
                 .watch = liveness(actors::liveness_settings(), {})};
  for (auto& [other, there] : nodes_) {
    if (!lives(other) || has_lost(trainer(), other)) continue;
    made.others.heard_of(there.name, "");
    made.watch.node_up(there.name, {});
    there.others.heard_of(name, "");
    there.watch.node_up(name, {});
  }
  names_.emplace(name, id);
  nodes_.emplace(id, std::move(made));
  if (has_heartbeats_) after(below(between_heartbeats()), [this, id] { tick(id); });
}

// Ways.

void replay_company::carry_frame(const process_id& from, const process_id& to,
                                 std::function<void()> what) {
  if (const auto way = cut_links_.find({from, to}); way != cut_links_.end())
    return way->second.held.push_back(std::move(what));
  if (!has_lost(to, from)) what();
}

void replay_company::cut(const replay_options::cut& what) {
  const auto node_at = [this](std::uint32_t place) {
    return place == stages_ ? trainer() : holder(place);
  };
  cut_one_way(node_at(what.from), node_at(what.to), now_ + what.lasts);
  if (what.both_ways) cut_one_way(node_at(what.to), node_at(what.from), now_ + what.lasts);
}

void replay_company::cut_one_way(const process_id& from, const process_id& to,
                                 std::uint64_t until) {
  auto& way = cut_links_[{from, to}];
  way.until = std::max(way.until, until);
  agenda_.emplace(until, [this, from, to] { heal(from, to); });
}

/// What was held arrives in its order.
void replay_company::heal(const process_id& from, const process_id& to) {
  const auto way = cut_links_.find({from, to});
  if (way == cut_links_.end() || way->second.until > now_) return;
  const auto held = std::move(way->second.held);
  cut_links_.erase(way);
  for (const auto& each : held) carry_frame(from, to, each);
}

// Heartbeats take no time: a node hears each one that lives and is not cut off.

void replay_company::begin_heartbeats() {
  if (options_.cuts.empty()) return;
  has_heartbeats_ = true;
  for (const auto& [id, there] : nodes_)
    after(below(between_heartbeats()), [this, who = id] { tick(who); });
}

void replay_company::tick(const process_id& who) {
  if (is_over() || !lives(who)) return;
  hear_others(who);
  for (const auto& each : nodes_.at(who).watch.tick(time_of(now_)))
    if (const auto* const lost = std::get_if<liveness::lost>(&each))
      lose_sight(who, names_.at(lost->node));
  if (who == trainer()) end_suspect();
  after(between_heartbeats(), [this, who] { tick(who); });
}

void replay_company::hear_others(const process_id& who) {
  auto& here = nodes_.at(who);
  for (const auto& [other, there] : nodes_) {
    const bool sends = other != who && lives(other) && !has_lost(other, who);
    if (!sends || cut_links_.contains({other, who}) || has_lost(who, other)) continue;
    here.watch.heard(there.name);
    if (who != trainer()) continue;
    for (const auto& of : there.missed) suspicions_.heard(there.name, of, time_of(now_));
  }
}

/// Each of the two hears of it, for their connection ends. A node without the trainer ends itself.
void replay_company::lose_sight(const process_id& who, const process_id& of) {
  if (!lives(who) || has_lost(who, of)) return;
  auto& here = nodes_.at(who);
  const auto& name = nodes_.at(of).name;
  static_cast<void>(here.others.lose(name, {errc::timed_out, "it was silent"}));
  here.watch.node_down(name);
  after(a_delay(), [this, who, of] { carry(who, of, [this, who, of] { lose_sight(of, who); }); });
  if (who == trainer()) return fence(of);
  if (of == trainer()) return end_node(who);
  here.missed.insert(name);
}

// The trainer.

/// Of two that have lost sight of each other one has to go.
void replay_company::end_suspect() {
  if (!known_dead_.empty()) return;
  std::vector<std::string> there;
  for (std::uint32_t place = 0; place < stages_; ++place)
    there.push_back(nodes_.at(holder(place)).name);
  const auto found = suspicions_.due(there, actors::usual_deadlines.suspicion, time_of(now_));
  if (found) fence(names_.at(found->of));
}

/// The trainer takes a node for lost, and gives its place away. If it lives it goes on until it is
/// killed: it computes, votes, stores versions and writes, and others that have not been told yet
/// go on with it.
void replay_company::fence(const process_id& who) {
  if (who != holder(who.stage) || known_dead_.contains(who.stage)) return;
  auto& here = nodes_.at(trainer());
  const auto& name = nodes_.at(who).name;
  static_cast<void>(here.others.lose(name, {errc::peer_lost, "it is taken for lost"}));
  here.watch.node_down(name);
  if (lives(who)) {
    ++counts_.fenced;
    fenced_[who] = now_of(who.stage);
    dead_.insert(who.stage);
    after(life_in_doubt(), [this, who] { end_fenced(who); });
  }
  missed(who);
}

void replay_company::end_node(const process_id& who) {
  if (who == holder(who.stage) && !known_dead_.contains(who.stage)) return lose_any(who.stage);
  end_fenced(who);
}

void replay_company::end_fenced(const process_id& who) {
  const auto found = fenced_.find(who);
  if (found == fenced_.end()) return;
  const auto stage = found->second;
  if (const auto* const there = at(stage); there != nullptr && stage == now_of(stage.stage))
    last_weights_[stage.stage] = there->weights;
  processes_.erase(stage);
  keepers_.erase(who);
  fenced_.erase(found);
}

}  // namespace troupe::tests
