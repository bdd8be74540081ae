// The end of training steps on stages and a coordinator that a seed invents: sums, ties, votes and
// decisions in any order, repeated and late; and gradients that are not finite anywhere. What the
// stages make of it is compared, to the bit, with one loop over the steps. In some steps there are
// no micro-batches, as on a replica that has none: stages get there, and are told of it, in any
// order.

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/step_coordinator_core.hpp"
#include "engine/step/step_end_core.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// One number a parameter.
using numbers = std::vector<double>;

struct tie_end {
  std::uint32_t stage = 0;
  std::size_t parameter = 0;

  auto operator<=>(const tie_end&) const = default;
};

/// A run, and what its arithmetic gives.
struct scenario {
  std::uint32_t stages = 1;
  std::size_t parameters = 1;  // of each stage
  std::uint64_t steps = 1;
  std::uint32_t accumulate = 1;
  step_coordinator_rules rules = {};
  double most = 1e9;                                 // clipping by value
  std::map<tie_end, tie_end> ties = {};              // each both ways
  std::vector<std::vector<numbers>> gradients = {};  // by step, stage: of this stage alone
  std::vector<std::string> bad_loss = {};            // by step, of the last stage
  std::vector<bool> is_dry = {};                     // by step
  std::vector<bool> is_empty = {};                   // by step: stages do not wait for each other

  [[nodiscard]] bool may_leave_out() const { return rules.skip || rules.scaler; }

  /// With those of tied weights.
  [[nodiscard]] numbers complete(std::uint64_t step, std::uint32_t stage) const {
    numbers all = gradients[step][stage];
    for (std::size_t p = 0; p < all.size(); ++p)
      if (const auto tie = ties.find({stage, p}); tie != ties.end())
        all[p] += gradients[step][tie->second.stage][tie->second.parameter];
    return all;
  }
};

std::string first_nan(const numbers& all) {
  for (std::size_t p = 0; p < all.size(); ++p)
    if (std::isnan(all[p])) return "parameter " + std::to_string(p);
  return "";
}

scenario invent(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  scenario made{.stages = static_cast<std::uint32_t>(1 + below(5)),
                .parameters = 1 + below(3),
                .steps = 1 + below(12),
                .accumulate = static_cast<std::uint32_t>(1 + below(3))};
  made.rules.stages = made.stages;
  made.rules.skip = below(2) == 0;
  if (below(2) == 0) made.rules.clip_norm = 0.5 * static_cast<double>(1 + below(4));
  if (below(3) == 0) made.rules.scaler = loss_scaler{.scale = 4, .most = 8, .interval = 2};
  if (below(2) == 0) made.most = 1;
  for (std::uint32_t s = 0; s + 1 < made.stages && below(2) == 0; ++s) {
    const tie_end one{s, below(made.parameters)};
    const tie_end other{static_cast<std::uint32_t>(s + 1 + below(made.stages - s - 1)),
                        below(made.parameters)};
    if (made.ties.contains(one) || made.ties.contains(other)) continue;
    made.ties[one] = other;
    made.ties[other] = one;
  }
  const std::uint64_t trouble = below(3) == 0 ? 0 : 1 + below(10);  // in a hundred
  for (std::uint64_t step = 0; step < made.steps; ++step) {
    made.gradients.emplace_back(made.stages, numbers(made.parameters));
    for (auto& stage : made.gradients.back())
      for (auto& each : stage)
        each = below(100) < trouble ? nan
                                    : std::ldexp(static_cast<double>(random() >> 11) - 0x1p52,
                                                 -50 - static_cast<int>(below(20)));
    made.bad_loss.push_back(below(200) < trouble ? "the loss is NaN" : "");
    made.is_dry.push_back(below(8) == 0);
    made.is_empty.push_back(below(4) == 0);
  }
  return made;
}

/// What one loop over the steps makes of a scenario.
struct expected_run {
  std::vector<numbers> weights;       // by stage
  std::vector<std::string> left_out;  // by step, until the one that ends it
  std::vector<double> loss_scales;    // after each step
  bool fails = false;                 // the next step ends the run
};

class reference {
 public:
  explicit reference(const scenario& of)
      : of_(of), sums_(of.stages, numbers(of.parameters, 0)), scaler_(of.rules.scaler) {
    out_.weights = sums_;
  }

  expected_run run() {
    for (std::uint64_t step = 0; step < of_.steps && !out_.fails; ++step) {
      if (of_.is_dry[step]) {
        out_.fails = !of_.bad_loss[step].empty() && !of_.may_leave_out();
        if (!out_.fails) out_.left_out.emplace_back();
      } else {
        take(step);
      }
      if (!out_.fails) out_.loss_scales.push_back(scaler_ ? scaler_->scale : 1);
    }
    return std::move(out_);
  }

 private:
  void take(std::uint64_t step) {
    std::string bad;
    for (std::uint32_t s = 0; s < of_.stages; ++s) {
      auto here = first_nan(of_.complete(step, s));
      if (s + 1 == of_.stages && !of_.bad_loss[step].empty()) here = of_.bad_loss[step];
      if (!here.empty()) bad = "stage-" + std::to_string(s) + ": " + here;  // the last counts
    }
    if (!bad.empty()) return leave_out(bad, of_.bad_loss[step].empty());
    if (scaler_) scaler_->hear(true);
    out_.left_out.emplace_back();
    for (std::uint32_t s = 0; s < of_.stages; ++s) {
      const auto whole = of_.complete(step, s);
      for (std::size_t p = 0; p < of_.parameters; ++p) sums_[s][p] += whole[p];
    }
    if (++heard_ < of_.accumulate) return;
    if (!is_left_out_) update();
    begin_update();
  }

  void leave_out(const std::string& bad, bool may_heal) {
    if (may_heal && scaler_ && scaler_->can_fall()) {
      scaler_->hear(false);
    } else if (!of_.rules.skip) {
      out_.fails = true;
      return;
    }
    out_.left_out.push_back(bad);
    is_left_out_ = true;
    if (++heard_ == of_.accumulate) begin_update();
  }

  void begin_update() {
    heard_ = 0;
    is_left_out_ = false;
    sums_.assign(of_.stages, numbers(of_.parameters, 0));
  }

  void update() {
    numbers squares;
    for (auto& stage : sums_)
      for (auto& each : stage) {
        each = std::clamp(each / of_.accumulate, -of_.most, of_.most);
        squares.push_back(each * each);
      }
    std::ranges::sort(squares);
    const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0)),
                 most = of_.rules.clip_norm;
    const double scale = most > 0 && norm > most ? most / norm : 1;
    for (std::uint32_t s = 0; s < of_.stages; ++s)
      for (std::size_t p = 0; p < of_.parameters; ++p) out_.weights[s][p] -= scale * sums_[s][p];
  }

  const scenario& of_;
  std::vector<numbers> sums_;
  std::optional<loss_scaler> scaler_;
  std::uint32_t heard_ = 0;
  bool is_left_out_ = false;
  expected_run out_;
};

class world {
 public:
  world(const scenario& of, std::mt19937_64& random)
      : of_(of), random_(random), coordinator_(of.rules), here_(of.stages) {
    for (std::uint32_t s = 0; s < of.stages; ++s) {
      std::set<std::string> ties;
      for (const auto& [end, other] : of.ties)
        if (end.stage == s) ties.insert(std::to_string(end.parameter));
      here_[s].core = step_end_core({.stage = {s},
                                     .ties = ties,
                                     .may_leave_out = of.may_leave_out(),
                                     .clips_norm = of.rules.clip_norm > 0,
                                     .accumulate = of.accumulate});
      here_[s].weights = here_[s].sums = numbers(of.parameters, 0);
      after(s, [this, s] { begin(s); });
    }
  }

  std::string run() {
    while (!agenda_.empty() && fault_.empty() && now_ < 1'000'000) {
      auto next = agenda_.extract(agenda_.begin());
      now_ = next.key();
      next.mapped()();
    }
    if (fault_.empty()) compare(reference(of_).run());
    return fault_;
  }

 private:
  struct stage {
    step_end_core core;
    numbers weights, sums;
    numbers whole;                                            // of the step that ends
    std::map<std::pair<step_key, std::size_t>, double> tied;  // that came, by parameter
    std::uint64_t begun = 0, computed = 0;
    std::vector<std::string> left_out;            // of the steps that are over
    std::map<std::uint64_t, double> loss_scales;  // that decisions named, by step
    std::optional<step_key> awaits, last_decided;
    bool fails = false;
  };

  static step_key key_of(std::uint64_t step) { return {epoch_id{1}, step_id{step + 1}}; }
  static std::uint64_t number_of(const step_key& key) { return key.step.value - 1; }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  void wrong(const std::string& what) {
    if (fault_.empty()) fault_ = "at " + std::to_string(now_) + ": " + what;
  }
  /// At some later time.
  void after(std::uint64_t least, std::function<void()> what) {
    agenda_.emplace(now_ + least + below(below(5) == 0 ? 100 : 8), std::move(what));
  }

  void begin(std::uint32_t s) {
    auto& me = here_[s];
    if (me.begun == of_.steps || me.begun >= me.left_out.size() + 2) return;
    const auto step = me.begun++;
    if (!me.core.begin(key_of(step), step + 1, of_.is_dry[step]))
      return wrong("a step begins twice");
    go_on(s);
  }

  /// A stage has one step more announced than it has ended.
  void go_on(std::uint32_t s) {
    for (std::uint32_t each = 0; each < of_.stages; ++each) compute(each);
    if (here_[s].begun < here_[s].left_out.size() + 2) after(0, [this, s] { begin(s); });
  }

  /// Its next step's actions, which need those of the other stages, so that they have begun it too;
  /// unless there are none.
  void compute(std::uint32_t s) {
    auto& me = here_[s];
    const auto step = me.left_out.size();
    const auto is_ready = [step](const stage& each) {
      return each.begun > step && each.left_out.size() >= step;
    };
    if (me.computed > step || !is_ready(me)) return;
    if (!of_.is_empty[step] && !std::ranges::all_of(here_, is_ready)) return;
    ++me.computed;
    after(1, [this, s, step] {
      if (const auto& bad = of_.bad_loss[step]; s + 1 == of_.stages && !bad.empty())
        if (const auto told = here_[s].core.loss_not_finite(key_of(step), bad); !told)
          return fail(s, told.error());
      perform(s, here_[s].core.actions_done(key_of(step)));
    });
  }

  void fail(std::uint32_t s, const error& why) {
    if (why.code != errc::handler_failed) return wrong(why.text);
    here_[s].fails = true;
    here_[s].core.give_up();
  }

  void perform(std::uint32_t s, const result<step_end_effects>& effects) {
    if (here_[s].fails) return;
    if (!effects) return fail(s, effects.error());
    for (const auto& effect : *effects)
      std::visit([this, s](const auto& what) { perform(s, what); }, effect);
  }

  void perform(std::uint32_t s, const sum_own& what) {
    here_[s].whole = of_.gradients[number_of(what.key)][s];
    after(1, [this, s, what] {
      if (what.complete) return complete(s, what.key, *what.complete);
      perform(s, here_[s].core.own_summed(what.key));
    });
  }

  void perform(std::uint32_t /*s*/, const sum_replicas& /*what*/) { FAIL("there is one replica"); }

  void perform(std::uint32_t s, const share_ties& what) {
    for (const auto& [own, other] : of_.ties) {
      if (own.stage != s) continue;
      const double value = here_[s].whole[own.parameter];
      const int times = below(6) == 0 ? 2 : 1;
      for (int i = 0; i < times; ++i)
        after(1, [this, to = other, key = what.key, value] { hand_over(to, key, value); });
    }
  }

  /// A second copy is refused, whenever it comes.
  void hand_over(const tie_end& to, const step_key& key, double value) {
    auto& at = here_[to.stage];
    const auto effects = at.core.tie_arrived(key, std::to_string(to.parameter));
    const bool is_new = at.tied.emplace(std::pair(key, to.parameter), value).second;
    if (is_new) return perform(to.stage, effects);
    if (effects || (effects.error().code != errc::bad_frame && effects.error().code != errc::stale))
      wrong("a tied gradient was taken twice");
  }

  void perform(std::uint32_t s, const sum_with_ties& what) {
    auto& me = here_[s];
    for (const auto& [own, other] : of_.ties)
      if (own.stage == s) me.whole[own.parameter] += me.tied.at({what.key, own.parameter});
    after(1, [this, s, what] { complete(s, what.key, what.terms); });
  }

  void complete(std::uint32_t s, const step_key& key, const gradient_terms& terms) {
    auto& me = here_[s];
    gradient_report report{.not_finite = first_nan(me.whole)};
    if (report.not_finite.empty() && terms.use != gradient_use::check)
      for (std::size_t p = 0; p < me.sums.size(); ++p) me.sums[p] += me.whole[p];
    if (report.not_finite.empty() && terms.use == gradient_use::update) {
      for (auto& each : me.sums) each = std::clamp(each / of_.accumulate, -of_.most, of_.most);
      if (terms.squares)
        for (const double each : me.sums) report.squares.push_back(each * each);
    }
    perform(s, me.core.gradients_ready(key, report));
  }

  /// Votes come late, and again: soon, or long after.
  void perform(std::uint32_t s, const cast_vote& what) {
    here_[s].awaits = what.vote.step;
    for (std::uint64_t times = below(4) == 0 ? 3 : 1; times > 0; --times)
      after(1, [this, s, vote = what.vote] { vote_arrives(s, vote); });
  }

  void vote_arrives(std::uint32_t s, step_vote vote) {
    const auto decision = coordinator_.hear(vote);
    if (!decision) {
      const bool is_repeated = !voted_.emplace(s, vote.step).second;
      if (!is_repeated || decision.error().code != errc::stale) wrong(decision.error().text);
      return;
    }
    voted_.emplace(s, vote.step);
    if (below(4) == 0) contradict(vote);
    if (!*decision) return;
    const bool is_first = decided_.insert(vote.step).second;
    for (std::uint32_t to = 0; to < of_.stages; ++to) {
      if (!is_first && to != s) continue;
      for (std::uint64_t times = below(4) == 0 ? 2 : 1; times > 0; --times)
        after(1, [this, to, decision = **decision] { decision_arrives(to, decision); });
    }
  }

  void contradict(step_vote vote) {
    if (below(2) == 0)
      vote.not_finite += "?";
    else
      vote.squares.push_back(0);
    const auto decision = coordinator_.hear(vote);
    if (decision || decision.error().code != errc::bad_frame) wrong("a stage changed its vote");
  }

  void decision_arrives(std::uint32_t s, step_decision what) {
    auto& me = here_[s];
    if (me.awaits == what.step) {
      me.awaits.reset();
      me.last_decided = what.step;
      me.loss_scales[number_of(what.step)] = what.loss_scale;
      return perform(s, me.core.decided(what));
    }
    if (me.fails) return;
    const auto again = me.core.decided(what);
    if (!again || !again->empty()) wrong("a repeated decision had effects");
    what.scale *= 0.5;
    if (me.last_decided == what.step && me.core.decided(what)) wrong("a decision was changed");
  }

  void perform(std::uint32_t /*s*/, const keep_gradients& what) {
    if (!of_.is_dry[number_of(what.key)]) wrong("a step became a dry run");
  }

  void perform(std::uint32_t s, const apply_step& what) {
    auto& me = here_[s];
    if (!what.scale) return;
    for (std::size_t p = 0; p < me.weights.size(); ++p) me.weights[p] -= *what.scale * me.sums[p];
    me.sums.assign(of_.parameters, 0);
    after(1, [this, s, what] { perform(s, here_[s].core.ended(what.key)); });
  }

  void perform(std::uint32_t s, const undo_step& what) {
    if (what.drops_sums) here_[s].sums.assign(of_.parameters, 0);
    after(1, [this, s, what] { perform(s, here_[s].core.ended(what.key)); });
  }

  void perform(std::uint32_t s, const finish_step& what) {
    auto& me = here_[s];
    if (number_of(what.key) != me.left_out.size()) wrong("steps end out of order");
    me.left_out.push_back(what.left_out);
    go_on(s);
  }

  void perform(std::uint32_t s, const end_run& what) { fail(s, {errc::handler_failed, what.why}); }

  void compare(const expected_run& expected) {
    const std::size_t steps = expected.left_out.size();
    bool fails = false;
    for (std::uint32_t s = 0; s < of_.stages; ++s) {
      const auto& me = here_[s];
      const auto who = "stage " + std::to_string(s);
      fails |= me.fails;
      if (me.left_out.size() != steps && !(expected.fails && may_go_on(me, steps)))
        return wrong(who + " ended " + std::to_string(me.left_out.size()) + " steps, not " +
                     std::to_string(steps));
      if (expected.fails && of_.may_leave_out() && !me.fails) return wrong(who + " goes on");
      for (std::size_t step = 0; step < steps; ++step)
        if (expected.left_out[step].empty() != me.left_out[step].empty() ||
            me.left_out[step].find(expected.left_out[step]) == std::string::npos)
          return wrong(who + " on step " + std::to_string(step + 1) + ": '" + me.left_out[step] +
                       "', not '" + expected.left_out[step] + "'");
      for (const auto& [step, scale] : me.loss_scales)
        if (step < steps && scale != expected.loss_scales[step])
          return wrong(who + " has another loss scale after step " + std::to_string(step + 1));
      if (me.left_out.size() == steps && me.weights != expected.weights[s])
        return wrong(who + " has other weights");
    }
    if (fails != expected.fails) wrong(fails ? "a stage failed" : "no stage failed");
  }

  /// Where stages are not coupled, others may end the step that fails on one of them, and the empty
  /// ones after it.
  [[nodiscard]] bool may_go_on(const stage& one, std::size_t failed) const {
    const auto ended = one.left_out.size();
    if (of_.may_leave_out() || ended <= failed) return false;
    for (auto step = failed + 1; step < ended; ++step)
      if (!of_.is_empty[step]) return false;
    return true;
  }

  std::string fault_;
  const scenario& of_;
  std::mt19937_64& random_;
  step_coordinator_core coordinator_;
  std::vector<stage> here_;
  std::set<std::pair<std::uint32_t, step_key>> voted_;  // what the coordinator has heard
  std::set<step_key> decided_;
  std::uint64_t now_ = 0;
  std::multimap<std::uint64_t, std::function<void()>> agenda_;
};

}  // namespace

TEST_CASE("stages end their steps as one loop does, whatever comes late, twice or not finite") {
  tests::for_each_seed(4000, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const scenario of = invent(random);
    return world(of, random).run();
  });
}
