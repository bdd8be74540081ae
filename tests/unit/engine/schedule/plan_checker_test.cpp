#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/unit/engine/schedule/plans.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A second opinion on a plan that shares nothing with the checker: hands messages around until
/// nobody can move, and counts what happened. True when the step did exactly what it should.
class oracle {
 public:
  oracle(const plan& steps, bool training)
      : plan_(steps),
        training_(training),
        m_(steps.microbatches),
        at_(steps.stages.size()),
        held_(at_.size()),
        done_(at_.size() * steps.chunks * 3 * m_) {}

  bool holds() {
    for (bool moved = true; moved && good_;) {
      moved = false;
      for (std::size_t s = 0; s < at_.size(); ++s)
        while (good_ && step(s)) moved = true;
    }
    for (std::size_t s = 0; s < at_.size(); ++s)
      if (at_[s] != plan_.stages[s].actions.size()) return false;
    const std::size_t kinds = training_ ? 3 : 1;
    return good_ && count_ == kinds * m_ * plan_.chunks * at_.size();
  }

 private:
  enum event { went_forward, has_gradient, has_weights };

  std::size_t cell(std::size_t virtual_stage, event what, std::uint32_t microbatch) const {
    return (virtual_stage * 3 + what) * m_ + microbatch;
  }
  bool has(std::size_t virtual_stage, event what, std::uint32_t microbatch) const {
    return done_[cell(virtual_stage, what, microbatch)] != 0;
  }

  std::size_t virtual_stage_of(std::size_t stage, std::uint32_t chunk) const {
    const bool back = plan_.order == chunk_order::v_shaped && chunk % 2 == 1;
    return chunk * at_.size() + (back ? at_.size() - 1 - stage : stage);
  }

  /// Each event once, micro-batches in order. `how`: a half of a backward only completes its like.
  void happen(std::size_t virtual_stage, event what, std::uint32_t microbatch, char how) {
    good_ = good_ && !has(virtual_stage, what, microbatch) &&
            (microbatch == 0 || has(virtual_stage, what, microbatch - 1));
    done_[cell(virtual_stage, what, microbatch)] = how;
    ++count_;
  }

  bool step(std::size_t s) {
    if (at_[s] == plan_.stages[s].actions.size()) return false;
    const auto [kind, microbatch, chunk] = plan_.stages[s].actions[at_[s]];
    const std::uint32_t n = microbatch.value;
    if (n >= m_ || chunk >= plan_.chunks || (!training_ && kind != action_kind::forward))
      return good_ = false;
    const std::size_t at = virtual_stage_of(s, chunk), virtual_stages = at_.size() * plan_.chunks;
    if (kind == action_kind::forward) {
      if (at > 0 && !has(at - 1, went_forward, n)) return false;
      happen(at, went_forward, n, 'F');
      if (++held_[s] > plan_.stages[s].memory_cap) good_ = false;
      if (!training_) --held_[s];
    } else if (kind == action_kind::weight_gradient) {
      if (!has(at, has_gradient, n)) return false;
      good_ = good_ && done_[cell(at, has_gradient, n)] == 'I';
      happen(at, has_weights, n, 'W');
      --held_[s];
    } else {
      if (!has(at, went_forward, n)) return false;
      if (at + 1 < virtual_stages && !has(at + 1, has_gradient, n)) return false;
      const bool whole = kind == action_kind::backward;
      happen(at, has_gradient, n, whole ? 'B' : 'I');
      if (whole) happen(at, has_weights, n, 'B');
      if (whole) --held_[s];
    }
    ++at_[s];
    return true;
  }

  const plan& plan_;
  bool training_;
  bool good_ = true;
  std::uint32_t m_;
  std::vector<std::size_t> at_;
  std::vector<std::int64_t> held_;
  std::vector<char> done_;
  std::size_t count_ = 0;
};

/// Calls `visit` with every plan that differs from `from` by one action.
void each_mutation(const plan& from, const std::function<void(const plan&)>& visit) {
  plan mutant = from;
  for (std::size_t s = 0; s < from.stages.size(); ++s) {
    const auto& own = from.stages[s].actions;
    auto& list = mutant.stages[s].actions;
    const auto with = [&](auto&& change) {
      change();
      if (list != own) visit(mutant);
      list = own;
    };
    const auto size = static_cast<std::ptrdiff_t>(own.size());
    for (std::ptrdiff_t n = 0; n < size; ++n) {
      with([&] { list.erase(list.begin() + n); });
      for (std::ptrdiff_t at = 0; at <= size; ++at)
        with([&] { list.insert(list.begin() + at, action(own[n])); });
      for (std::ptrdiff_t other = n + 1; other < size; ++other)
        with([&] { std::swap(list[n], list[other]); });
      for (const auto kind : {action_kind::forward, action_kind::backward,
                              action_kind::input_gradient, action_kind::weight_gradient})
        with([&] { list[n].kind = kind; });
      for (std::uint32_t other = 0; other <= from.microbatches; ++other)
        with([&] { list[n].microbatch.value = other; });
      for (std::uint32_t other = 0; other <= from.chunks; ++other)
        with([&] { list[n].chunk = other; });
    }
  }
}

}  // namespace

TEST_CASE("every generated plan passes the checker and the oracle") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 20; ++m)
      for (const auto& schedule : all_schedules()) {
        CAPTURE(schedule.name, schedule.chunks, p, m);
        const plan steps = make(schedule, p, m);
        CHECK(violation_of(steps) == "none");
        CHECK(oracle(steps, true).holds());
        const plan forwards = forward_only(steps.layout(), m);
        CHECK(violation_of(forwards, step_kind::evaluation) == "none");
        CHECK(oracle(forwards, false).holds());
        CHECK(violation_of(forwards) != "none");
      }
}

TEST_CASE("every rule of the checker names stage, action and rule") {
  const std::vector<action> good{f(0), f(1), b(0), b(1)};
  const auto last = [&](const std::vector<action>& list) {
    return violation_of(two_stages(good, list, 2));
  };
  CHECK(last({f(0), f(1), b(0)}) == "stage 1: B1 is missing");
  CHECK(last({f(0), b(0)}) == "stage 1: F1 is missing");
  CHECK(last({f(0), f(1), f(1), b(0), b(1)}) == "stage 1: F1 appears twice");
  CHECK(last({f(0), f(1), b(0), b(0), b(1)}) == "stage 1: B0 appears twice");
  CHECK(last({f(0), b(0), b(1), f(1)}) == "stage 1: B1 comes before F1");
  CHECK(last({f(1), f(0), b(0), b(1)}) == "stage 1: F1 is out of order: F0 has not come yet");
  CHECK(last({f(0), f(1), b(1), b(0)}) == "stage 1: B1 is out of order: B0 has not come yet");
  CHECK(last({f(0), f(2), b(0), b(1)}) ==
        "stage 1: F2 is not a micro-batch of this step, which has 2");
  CHECK(last({f(0), b(0), f(1), b(1)}) == "none");
  CHECK(last({f(0), i(0), w(0), f(1), b(1)}) == "none");
  CHECK(last({f(0), i(0), f(1), b(1)}) == "stage 1: B1 is out of order: W0 has not come yet");
  CHECK(last({f(0), f(1), i(0), i(1), w(0)}) == "stage 1: W1 is missing");
  CHECK(last({f(0), f(1), i(0), w(1), i(1), w(0)}) == "stage 1: W1 comes before I1");
  CHECK(last({f(0), f(1), i(0), i(1), w(1), w(0)}) ==
        "stage 1: W1 is out of order: W0 has not come yet");
  CHECK(last({f(0), f(1), i(0), i(0), w(0), b(1)}) == "stage 1: I0 appears twice");
  CHECK(last({f(0), f(1), b(0), i(0), w(0), b(1)}) ==
        "stage 1: I0 comes beside B0: a micro-batch goes backward once");
  CHECK(last({f(0), f(1), i(0), b(0), w(0), b(1)}) ==
        "stage 1: B0 comes beside I0: a micro-batch goes backward once");
  CHECK(last({f(0), f(1), b(0), w(0), b(1)}) ==
        "stage 1: W0 comes beside B0: a micro-batch goes backward once");
  CHECK(last({f(0), f(1), b(0), b(1, 1)}) == "stage 1: B1 is of chunk 1, the stage has 1");
  CHECK(violation_of(two_stages({f(0), b(0), f(1), b(1)}, good, 2)) ==
        "stage 0: B0 waits for ever for B0 of stage 1");
  CHECK(violation_of(gpipe(2, 2), step_kind::evaluation) ==
        "stage 0: B0 in an evaluation step, which has no backward");
  plan capped = gpipe(2, 3);
  capped.stages[1].memory_cap = 2;
  CHECK(violation_of(capped) == "stage 1: F2 would hold 3 activations, over the memory cap of 2");
  CHECK(violation_of({"none", 1, {}}) == "a plan of 0 stages is out of range: 1 to 1024");
  CHECK_THAT(violation_of(gpipe(1, 0)), ContainsSubstring("0 micro-batches are out of range"));
  CHECK_THAT(violation_of({"x", 1, {{{}, 1}}, 17}),
             ContainsSubstring("17 chunks are out of range"));
  CHECK(check(capped).error().code == errc::bad_config);
}

TEST_CASE("chunks that wait for each other across stages are found") {
  plan crossed{
      "hand",
      1,
      {{{f(0, 1), f(0, 0), b(0, 1), b(0, 0)}, 2}, {{f(0, 0), f(0, 1), b(0, 1), b(0, 0)}, 2}},
      2};
  CHECK(violation_of(crossed) == "stage 0: 1F0 waits for ever for 0F0 of stage 1");
  crossed.order = chunk_order::v_shaped;
  CHECK(violation_of(crossed) == "stage 0: 1F0 waits for ever for 1F0 of stage 1");
  std::swap(crossed.stages[0].actions[0], crossed.stages[0].actions[1]);
  CHECK(violation_of(crossed) == "none");
  crossed.stages[1].actions = {f(0, 0), b(0, 0), f(0, 1), b(0, 1)};
  CHECK(violation_of(crossed) == "stage 0: 1F0 waits for ever for 1F0 of stage 1");
}

TEST_CASE("every plan that differs by one action is refused, or does the same work") {
  std::size_t refused = 0, harmless = 0;
  const auto check_mutant = [&](const plan& mutant, bool training) {
    const bool accepted =
        check(mutant, training ? step_kind::training : step_kind::evaluation).has_value();
    const bool holds = oracle(mutant, training).holds();
    if (accepted != holds)
      FAIL("checker: " << accepted << ", oracle: " << holds << ", plan: " << to_text(mutant));
    ++(accepted ? harmless : refused);
  };
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 8; ++m) {
      for (const auto& schedule : all_schedules())
        each_mutation(make(schedule, p, m),
                      [&](const plan& mutant) { check_mutant(mutant, true); });
      each_mutation(forward_through(p, m),
                    [&](const plan& mutant) { check_mutant(mutant, false); });
    }
  CHECK(refused > 1000000);
  CHECK(harmless > 1000);  // gpipe with F4 and B0 swapped on the last stage, for one
}

TEST_CASE("replicas with one micro-batch less do what they have in common in one order") {
  for (const std::uint32_t stages : {1U, 2U, 4U})
    for (const std::uint32_t count : {2U, 3U, 5U, 9U}) {
      CHECK(is_part_of(gpipe(stages, count - 1), gpipe(stages, count)));
      CHECK(is_part_of(one_f_one_b(stages, count - 1), one_f_one_b(stages, count)));
    }
  plan swapped = one_f_one_b(2, 3);  // stage 0: F0 F1 B0 F2 B1 B2
  std::swap(swapped.stages[0].actions[1], swapped.stages[0].actions[2]);
  CHECK_FALSE(is_part_of(one_f_one_b(2, 2), swapped));
  CHECK(is_part_of(zb_h1(2, 2), zb_h1(2, 3)));  // weight gradients wait for nobody
}
