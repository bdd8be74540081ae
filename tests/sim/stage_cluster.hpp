#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/step/stage_core.hpp"

namespace troupe::tests {

/// A factor that chance gives.
using stretch = std::function<double(std::mt19937_64&)>;

/// What a simulated pipeline is and what befalls it.
struct cluster_options {
  engine::plan training;
  std::uint32_t credits = engine::default_credits;
  engine::execution how = engine::execution::ready;
  std::uint64_t steps = 6;
  std::uint32_t evaluations_of_3 = 1;         ///< How many steps of three only evaluate.
  std::uint32_t least_delay = 0, jitter = 5;  ///< A message takes least_delay + [0, jitter).
  /// What F, I and W take with one micro-batch on a whole stage, and [0, action_jitter) more.
  std::uint32_t forward = 1, input_gradient = 1, weight_gradient = 1;
  std::uint32_t action_jitter = 5;
  /// Of how many equal pieces a weight gradient is, which fill gaps before its turn; 0: none do.
  std::uint32_t pieces = 0;
  /// If given, what the parts of an action take one after the other, instead of the costs above and
  /// what chance makes of them. Parts of a weight gradient fill gaps if `pieces` is not 0; of a
  /// whole backward the first half is that of the input's gradient.
  std::function<std::vector<std::uint64_t>(std::uint32_t stage, const engine::start_action&)>
      parts = {};
  /// By what times are multiplied; empty: 1.
  stretch messages_take = {}, actions_take = {}, microbatches_take = {};
  bool repeats = false;   ///< Some messages arrive twice.
  bool restarts = false;  ///< Once, everything starts over in a new epoch.
};

/// A pipeline of stage cores and its feeder on a network and a clock that a seed invents: every
/// message takes its own time, so they overtake each other.
class stage_cluster {
 public:
  stage_cluster(cluster_options options, std::uint64_t seed);

  /// What went wrong, or "" if every action of every step ran once, micro-batches in order, no
  /// stage ever held more than its cap and no edge more than its credits.
  std::string run();

  /// When the last action ended.
  [[nodiscard]] std::uint64_t finished_at() const noexcept { return last_end_; }

 private:
  using event = std::function<result<engine::stage_effects>(engine::stage_core&)>;
  using place =
      std::pair<std::uint32_t, engine::edge>;  // a receiver's virtual stage and what it gets

  /// Of what happens at one time: a stage looks for its next action after all else, so that what
  /// its neighbours have at that time is there.
  enum phase : std::uint8_t { arrives, looks_for_work };

  std::uint32_t below(std::uint32_t bound);
  void at(std::uint64_t time, phase when, std::function<void()> what);
  void after(std::uint64_t delay, std::function<void()> what);
  std::uint64_t a_delay();
  [[nodiscard]] engine::step_key current(std::uint64_t step) const { return {epoch_, {step}}; }
  [[nodiscard]] const engine::stage_plan& plan_of(std::uint64_t step, std::uint32_t stage) const;
  void announce();
  void begin(std::uint32_t stage, std::uint64_t step);
  void restart();
  void hand(std::uint32_t to, engine::step_key key, const event& what);
  void send(std::uint32_t virtual_stage, engine::edge on, const engine::edge_place& what);
  void feed(engine::edge on, const std::vector<engine::edge_place>& due);
  void credit_feeder(engine::edge on, const engine::edge_place& what);
  void grant(std::uint32_t stage, const engine::grant_credit& granted);
  void pass_on(std::uint32_t stage, const engine::send_output& output);
  void deliver(std::uint32_t to, engine::step_key key, const event& what);
  void refuse(std::uint32_t to, engine::step_key key, const event& what);
  void perform(std::uint32_t stage, const engine::stage_effects& effects);
  [[nodiscard]] std::uint64_t cost_of(std::uint32_t stage, const engine::step_key& key,
                                      const engine::action& what) const;
  [[nodiscard]] std::vector<std::uint64_t> parts_of(std::uint32_t stage,
                                                    const engine::start_action& start) const;
  void work(std::uint32_t stage, const engine::start_action& start);
  void put_off(std::uint32_t stage, const engine::start_action& gradient);
  [[nodiscard]] std::vector<std::uint64_t> take_what_is_left(std::uint32_t stage,
                                                             const engine::start_action& start);
  void fill_gap(std::uint32_t stage);
  void finish(std::uint32_t stage, const engine::step_finished& done);
  void check_log(std::uint32_t stage);
  void check_order(std::uint32_t stage, const engine::step_key& key,
                   const std::vector<engine::action>& actions);

  /// A weight gradient before its turn.
  struct deferred {
    engine::start_action what;
    std::deque<std::uint64_t> left;  // its parts
  };

  const cluster_options options_;
  const std::uint64_t seed_;
  const engine::model_layout layout_;
  const std::uint32_t stages_;
  engine::plan evaluation_;
  std::map<engine::step_kind, std::vector<engine::shared_plan>> proved_;  // by stage
  std::mt19937_64 random_;
  std::vector<bool> trains_;  // by step
  std::vector<engine::stage_core> cores_;
  std::array<engine::credited_queue, 2> feeder_;  // images, labels
  std::vector<bool> busy_;
  std::vector<std::vector<deferred>> deferred_;  // per stage, in the order of their I
  std::vector<std::uint64_t> piece_ends_;        // per stage: of the last piece that filled a gap
  std::vector<std::uint64_t> finished_;          // per stage: its last finished step
  std::vector<std::uint64_t> began_;             // per stage: when its last announcement arrives
  epoch_id epoch_{1};
  std::uint64_t announced_ = 0, restarted_after_ = 0, now_ = 0, last_end_ = 0;
  std::multimap<std::pair<std::uint64_t, phase>, std::function<void()>> agenda_;
  std::map<std::pair<std::uint32_t, engine::step_key>, std::vector<engine::action>> log_;
  std::map<std::pair<epoch_id, place>, std::uint32_t> unused_;  // sent and not yet used
  std::string fault_;
};

}  // namespace troupe::tests
