// A parameter server of cores on a network and a clock that a seed invents: workers join, push,
// repeat themselves, leave and die in the middle of a push.

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/parameter_server/coordinator_core.hpp"
#include "engine/parameter_server/shard_core.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

constexpr std::uint64_t pushes_each = 12;

/// Where messages come from and go to: shards count from 0, then the coordinator, then workers.
using place = std::uint32_t;

class world {
 public:
  world(const server_rules& rules, std::uint32_t workers, bool unruly, std::uint64_t seed)
      : rules_(rules), unruly_(unruly), random_(seed), coordinator_(rules) {
    for (std::uint32_t i = 0; i < rules.shards; ++i) {
      shards_.emplace_back(rules);
      logs_.emplace_back();
    }
    launcher_.resize(workers);
    for (std::uint32_t i = 0; i < workers; ++i) after(below(50), [this, i] { join(i); });
  }

  std::string run() {
    while (!agenda_.empty() && fault_.empty() && now_ < 1'000'000) {
      auto next = agenda_.extract(agenda_.begin());
      now_ = next.key();
      next.mapped()();
    }
    if (fault_.empty()) check_end();
    return fault_;
  }

 private:
  struct worker_state {
    worker_id id;
    bool alive = true;
    bool done = false;
    bool waits = false;  // for the answers to its push
    std::uint64_t sequence = 0;
    param_version base;
    std::map<std::uint32_t, result<param_version>> answers;  // by shard, of the open push
    std::uint64_t dies_after = 0;                            // pushes; 0: never
  };

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  void after(std::uint64_t delay, std::function<void()> what) {
    agenda_.emplace(now_ + delay, std::move(what));
  }
  void wrong(const std::string& what) {
    if (fault_.empty()) fault_ = "at " + std::to_string(now_) + ": " + what;
  }

  /// Channels keep their order; each message takes its own time.
  void send(place from, place to, std::function<void()> what) {
    auto& last = channels_[{from, to}];
    last = std::max(last, now_ + 1 + below(below(4) == 0 ? 60 : 6));
    agenda_.emplace(last, std::move(what));
  }
  [[nodiscard]] place coordinator_place() const { return rules_.shards; }
  [[nodiscard]] place place_of(std::uint32_t worker) const { return rules_.shards + 1 + worker; }

  // The coordinator's effects, and what shards hear of them.
  void perform(const coordinator_effects& effects) {
    for (const auto& effect : effects) {
      if (const auto* welcome = std::get_if<welcome_member>(&effect)) {
        for (std::uint32_t i = 0; i < launcher_.size(); ++i)
          if (launcher_[i].id == welcome->worker)
            send(coordinator_place(), place_of(i), [this, i, at = coordinator_.version()] {
              launcher_[i].base = at;
              push(i);
            });
        continue;
      }
      for (std::uint32_t s = 0; s < rules_.shards; ++s)
        send(coordinator_place(), s, [this, s, effect] { hear(s, effect); });
    }
  }

  void hear(std::uint32_t s, const coordinator_effect& what) {
    auto& shard = shards_[s];
    if (const auto* in = std::get_if<admit_member>(&what)) {
      shard.admit(in->worker);
      send(s, coordinator_place(), [this, id = in->worker] { perform(coordinator_.admitted(id)); });
    } else if (const auto* out = std::get_if<expel_member>(&what)) {
      perform(s, shard.expel(out->worker));
    } else if (const auto* update = std::get_if<server_update>(&what)) {
      const auto effects = shard.apply(*update);
      effects ? perform(s, *effects) : wrong(effects.error().text);
    } else if (const auto* part = std::get_if<refuse_part>(&what)) {
      perform(s, shard.refuse(part->push, part->why));
    }
  }

  void perform(std::uint32_t s, const shard_effects& effects) {
    for (const auto& effect : effects) {
      if (const auto* staged = std::get_if<report_staged>(&effect)) {
        kept_[s].insert(staged->what.push);
        for (int times = unruly_ && below(5) == 0 ? 2 : 1; times > 0; --times)
          send(s, coordinator_place(), [this, s, report = *staged] {
            perform(coordinator_.staged(s, report.what, report.fault));
          });
      } else if (const auto* start = std::get_if<start_update>(&effect)) {
        for (const auto& each : start->update.pushes)
          if (kept_[s].erase(each.push) != 1) wrong("an update lacks a part");
        logs_[s].push_back(start->update);
        // One thread, one after another.
        busy_until_[s] = std::max(busy_until_[s], now_) + 1 + below(20);
        after(busy_until_[s] - now_, [this, s] { perform(s, shards_[s].updated({})); });
      } else if (const auto* forgotten = std::get_if<forget_part>(&effect)) {
        if (kept_[s].erase(forgotten->push) != 1) wrong("a part was forgotten twice");
      } else if (const auto* settled = std::get_if<settle_push>(&effect)) {
        answer(s, *settled);
      }
    }
  }

  void answer(std::uint32_t s, const settle_push& settled) {
    for (std::uint32_t i = 0; i < launcher_.size(); ++i)
      if (launcher_[i].id == settled.push.worker)
        send(s, place_of(i), [this, s, i, settled] { answered(i, s, settled); });
  }

  // Workers.
  void join(std::uint32_t i) {
    coordinator_effects effects;
    const auto id = coordinator_.join(i, effects);
    if (!id) return wrong(id.error().text);
    launcher_[i].id = *id;
    if (unruly_ && below(3) == 0) launcher_[i].dies_after = 1 + below(pushes_each);
    perform(effects);
  }

  void push(std::uint32_t i) {
    auto& me = launcher_[i];
    if (!me.alive) return;
    if (me.sequence == pushes_each) {
      me.done = true;
      send(place_of(i), coordinator_place(),
           [this, id = me.id] { perform(coordinator_.leave(id)); });
      return;
    }
    ++me.sequence;
    me.waits = true;
    const based_push what{{me.id, me.sequence}, me.base};
    const bool dying = me.sequence == me.dies_after;
    const std::uint32_t reaches = dying ? below(rules_.shards + 1) : rules_.shards;
    const bool spoilt = unruly_ && below(20) == 0;
    for (std::uint32_t s = 0; s < reaches; ++s) {
      std::optional<error> fault;
      if (spoilt && s == 0) fault = error{errc::bad_data, "spoilt"};
      for (int times = unruly_ && below(4) == 0 ? 2 : 1; times > 0; --times)
        send(place_of(i), s, [this, s, what, fault] {
          const auto effects = shards_[s].push(what, fault);
          if (effects) return perform(s, *effects);
          // A repetition that comes late, or after its worker has left.
          const auto code = effects.error().code;
          if (code != errc::stale && code != errc::not_admitted) wrong(effects.error().text);
        });
    }
    if (dying) {
      me.alive = false;
      after(below(300), [this, id = me.id] { perform(coordinator_.leave(id)); });
      if (below(2)) after(400, [this] { newcomer(); });
    }
  }

  void newcomer() {
    launcher_.emplace_back();
    join(static_cast<std::uint32_t>(launcher_.size() - 1));
  }

  void answered(std::uint32_t i, std::uint32_t s, const settle_push& settled) {
    auto& me = launcher_[i];
    if (!me.alive || !me.waits || settled.push.sequence != me.sequence) return;
    me.answers.insert_or_assign(s, settled.outcome);
    if (me.answers.size() < rules_.shards) return;
    for (const auto& [at, outcome] : me.answers)
      if (outcome != me.answers.begin()->second) return wrong("shards differ about a push");
    const auto outcome = me.answers.begin()->second;
    me.answers.clear();
    me.waits = false;
    const push_id id{me.id, me.sequence};
    if (outcome) {
      if (outcome->value <= me.base.value)
        return wrong("a push is part of a version before its base");
      told_applied_[id] = *outcome;
      me.base = *outcome;
    } else {
      told_refused_.insert(id);
      // Pulls: the oldest of what the shards have.
      me.base = shards_.front().version();
      for (const auto& shard : shards_) me.base = std::min(me.base, shard.version());
    }
    after(1 + below(30), [this, i] { push(i); });
  }

  void check_end() {
    if (now_ >= 1'000'000) return wrong("it does not end");
    std::set<push_id> applied;
    std::uint64_t count = 0;
    for (const auto& update : logs_.front()) {
      if (update.version.value != ++count) wrong("updates are out of order");
      std::set<worker_id> once;
      for (const auto& [push, base] : update.pushes) {
        if (!applied.insert(push).second) wrong("a push was applied twice");
        if (!once.insert(push.worker).second) wrong("a worker counts twice in an update");
        const auto age = update.version.value - 1 - base.value;
        if (age > (rules_.mode == server_mode::synchronous ? 0 : rules_.staleness))
          wrong("a push was too stale");
        if (told_refused_.contains(push)) wrong("a refused push was applied");
      }
    }
    for (const auto& log : logs_)
      if (log != logs_.front()) wrong("shards applied different updates");
    for (const auto& [push, version] : told_applied_)
      if (!applied.contains(push)) wrong("a push was lost");
    for (const auto& kept : kept_)
      if (!kept.second.empty()) wrong("a part is kept for ever");
    if (coordinator_.totals().applied != applied.size()) wrong("the coordinator counts wrong");
    for (const auto& each : launcher_)
      if (each.alive && !each.done) wrong("a worker waits for ever");
  }

  const server_rules rules_;
  const bool unruly_;
  std::mt19937_64 random_;
  coordinator_core coordinator_;
  std::vector<shard_core> shards_;
  std::vector<std::vector<server_update>> logs_;
  std::map<std::uint32_t, std::set<push_id>> kept_;
  std::map<std::uint32_t, std::uint64_t> busy_until_;
  std::vector<worker_state> launcher_;
  std::map<push_id, param_version> told_applied_;
  std::set<push_id> told_refused_;
  std::map<std::pair<place, place>, std::uint64_t> channels_;
  std::uint64_t now_ = 0;
  std::multimap<std::uint64_t, std::function<void()>> agenda_;
  std::string fault_;
};

}  // namespace

TEST_CASE("every push counts at all shards, once, or nowhere, whatever befalls the workers") {
  tests::for_each_seed(4000, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint32_t bound) {
      return static_cast<std::uint32_t>(random() % bound);
    };
    const std::uint32_t workers = 1 + below(5);
    const server_rules rules{
        .mode = below(2) ? server_mode::synchronous : server_mode::asynchronous,
        .staleness = below(2 * workers + 1),
        .shards = 1 + below(4),
        .expected_workers = workers};
    return world(rules, workers, below(4) != 0, seed).run();
  });
}
