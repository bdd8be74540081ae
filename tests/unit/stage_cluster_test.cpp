#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <map>
#include <random>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/schedule/stage_core.hpp"

using namespace troupe;
using namespace troupe::engine;

namespace {

/// A pipeline of stage cores on a network and a clock that a seed invents: every message takes its
/// own time, so they overtake each other; some arrive twice; some runs restart in a new epoch while
/// messages and work of the old one are still about.
class simulated_cluster {
 public:
  explicit simulated_cluster(std::uint64_t seed)
      : random_(seed),
        stages_(below(5) + 1),
        microbatches_(below(6) + 1),
        jitter_(below(2) ? 200 : 5),
        restarts_(below(3) == 0),
        cores_(stages_),
        busy_(stages_),
        finished_(stages_),
        began_(stages_, 0) {
    plan_ = below(2) ? one_f_one_b(stages_, microbatches_) : gpipe(stages_, microbatches_);
    evaluation_ = forward_only(stages_, microbatches_);
    for (std::uint64_t step = 0; step <= steps; ++step) trains_.push_back(below(3) != 0);
  }

  /// What went wrong, or "" if every action of every step ran once, in plan order.
  std::string run() {
    announce();
    if (restarts_) after(below(300), [this] { restart(); });
    while (!agenda_.empty() && fault_.empty()) {
      auto next = agenda_.begin();
      now_ = next->first;
      const auto what = std::move(next->second);
      agenda_.erase(next);
      what();
    }
    for (std::uint32_t s = 0; s < stages_ && fault_.empty(); ++s) check_log(s);
    return fault_;
  }

 private:
  static constexpr std::uint64_t steps = 6;
  using event = std::function<result<stage_effects>(stage_core&)>;

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  void after(std::uint64_t delay, std::function<void()> what) {
    agenda_.emplace(now_ + delay, std::move(what));
  }

  step_key current(std::uint64_t step) const { return {epoch_, {step}}; }

  // Two steps are on their way at most, as the coordinator of a run would have it.
  void announce() {
    while (announced_ < steps && std::ranges::all_of(finished_, [this](std::uint64_t done) {
             return announced_ < done + 2;
           })) {
      ++announced_;
      const step_key key = current(announced_);
      const bool training = trains_[announced_];
      for (std::uint32_t s = 0; s < stages_; ++s) {
        const run_step step{key, training ? step_kind::training : step_kind::evaluation,
                            (training ? plan_ : evaluation_).stages[s], s == 0, s + 1 == stages_};
        began_[s] = std::max(began_[s] + 1, now_ + below(jitter_));  // announcements keep order
        agenda_.emplace(began_[s], [this, s, step] {
          deliver(s, step.key, [step](stage_core& core) { return core.begin(step); });
        });
      }
      for (std::uint32_t i = 0; i < microbatches_; ++i) {
        send(0, key, &stage_core::input_arrived, {i});
        send(stages_ - 1, key, &stage_core::target_arrived, {i});
      }
    }
  }

  void restart() {
    const std::uint64_t committed = *std::ranges::min_element(finished_);
    epoch_ = {epoch_.value + 1};
    announced_ = committed;
    std::ranges::fill(finished_, committed);
    restarted_after_ = committed;
    announce();
  }

  using arrival = result<stage_effects> (stage_core::*)(const step_key&, microbatch_id);

  void send(std::uint32_t to, step_key key, arrival what, microbatch_id microbatch) {
    const auto hand = [key, what, microbatch](stage_core& core) {
      return (core.*what)(key, microbatch);
    };
    after(below(jitter_), [this, to, key, hand] {
      deliver(to, key, hand);
      if (below(10) == 0) after(below(jitter_), [this, to, key, hand] { refuse(to, key, hand); });
    });
  }

  void deliver(std::uint32_t to, step_key key, const event& what) {
    auto effects = what(cores_[to]);
    if (effects) return perform(to, *effects);
    if (key.epoch == epoch_ || effects.error().code != errc::stale)
      fault_ = "stage " + std::to_string(to) + " refused: " + effects.error().text;
  }

  // A second copy changes nothing, whenever it comes. (Of an epoch that is given up it may still be
  // taken: what a stage kept early for it is forgotten when it hears of a newer one.)
  void refuse(std::uint32_t to, step_key key, const event& what) {
    const std::string before = cores_[to].waiting_for();
    const auto effects = what(cores_[to]);
    if (effects && key.epoch < epoch_) return perform(to, *effects);
    if (effects || cores_[to].waiting_for() != before)
      fault_ = "stage " + std::to_string(to) + " took a message twice";
  }

  void perform(std::uint32_t s, const stage_effects& effects) {
    for (const auto& effect : effects) {
      if (const auto* start = std::get_if<start_action>(&effect)) work(s, *start);
      if (const auto* done = std::get_if<step_finished>(&effect)) finish(s, *done);
    }
  }

  void work(std::uint32_t s, const start_action& start) {
    if (busy_[s]) fault_ = "stage " + std::to_string(s) + " runs two actions at once";
    busy_[s] = true;
    log_[{s, start.key}].push_back(start.what);
    after(1 + below(jitter_), [this, s, key = start.key, what = start.what] {
      if (what.kind == action_kind::forward && s + 1 < stages_)
        send(s + 1, key, &stage_core::input_arrived, what.microbatch);
      if (what.kind == action_kind::backward && s > 0)
        send(s - 1, key, &stage_core::gradient_arrived, what.microbatch);
      busy_[s] = false;
      deliver(s, key, [key, what](stage_core& core) { return core.action_done(key, what); });
    });
  }

  void finish(std::uint32_t s, const step_finished& done) {
    const auto close = [this, s, done] {
      if (done.key.epoch != epoch_) return;
      finished_[s] = done.key.step.value;
      announce();
    };
    if (done.kind == step_kind::evaluation) return close();
    after(below(jitter_), [this, s, done, close] {
      deliver(s, done.key, [key = done.key](stage_core& core) { return core.update_done(key); });
      close();
    });
  }

  void check_log(std::uint32_t s) {
    for (std::uint64_t step = restarted_after_ + 1; step <= steps; ++step) {
      const auto& expected = (trains_[step] ? plan_ : evaluation_).stages[s].actions;
      if (log_[{s, current(step)}] != expected)
        fault_ = "stage " + std::to_string(s) + " did not complete " + to_string(current(step)) +
                 ": " + cores_[s].waiting_for();
    }
    for (const auto& [who, actions] : log_) {
      const auto& whole = (trains_[who.second.step.value] ? plan_ : evaluation_).stages[who.first];
      if (actions.size() > whole.actions.size() ||
          !std::equal(actions.begin(), actions.end(), whole.actions.begin()))
        fault_ = "stage " + std::to_string(who.first) + " left the order of its plan";
    }
    if (cores_[s].waiting_for() != "no step is announced")
      fault_ = "stage " + std::to_string(s) + " is not idle: " + cores_[s].waiting_for();
  }

  std::mt19937_64 random_;
  std::uint32_t stages_, microbatches_, jitter_;
  bool restarts_;
  plan plan_, evaluation_;
  std::vector<bool> trains_;  // by step
  std::vector<stage_core> cores_;
  std::vector<bool> busy_;
  std::vector<std::uint64_t> finished_;  // per stage: its last finished step
  std::vector<std::uint64_t> began_;     // per stage: when its last announcement arrives
  epoch_id epoch_{1};
  std::uint64_t announced_ = 0, restarted_after_ = 0, now_ = 0;
  std::multimap<std::uint64_t, std::function<void()>> agenda_;
  std::map<std::pair<std::uint32_t, step_key>, std::vector<action>> log_;
  std::string fault_;
};

}  // namespace

TEST_CASE("every action of every step runs once and in plan order, whatever the network does") {
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    const std::string fault = simulated_cluster(seed).run();
    if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
  }
}
