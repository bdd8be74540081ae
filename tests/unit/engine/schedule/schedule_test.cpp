#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/schedule/gantt.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/schedule/simulation.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr action f(std::uint32_t i, std::uint32_t chunk = 0) {
  return {action_kind::forward, {i}, chunk};
}
constexpr action b(std::uint32_t i, std::uint32_t chunk = 0) {
  return {action_kind::backward, {i}, chunk};
}
constexpr action i(std::uint32_t index, std::uint32_t chunk = 0) {
  return {action_kind::input_gradient, {index}, chunk};
}
constexpr action w(std::uint32_t index, std::uint32_t chunk = 0) {
  return {action_kind::weight_gradient, {index}, chunk};
}

plan two_stages(std::vector<action> first, std::vector<action> last, std::uint32_t microbatches) {
  return {"hand", microbatches, {{std::move(first), 8}, {std::move(last), 8}}};
}

plan forward_through(std::uint32_t stages, std::uint32_t microbatches) {
  return forward_only({stages, 1}, microbatches);
}

std::string violation_of(const plan& steps, step_kind kind = step_kind::training) {
  const auto checked = check(steps, kind);
  return checked ? "none" : checked.error().text;
}

/// Every schedule there is, interleaved ones with 2 and 3 chunks.
std::vector<schedule_choice> all_schedules() {
  std::vector<schedule_choice> all;
  for (const auto name : built_in_schedules().names()) all.push_back({std::string(name)});
  all.push_back({"interleaved-1f1b", 3});
  return all;
}

plan make(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
  return plan_step(schedule, p, m).value();
}

simulation run(const plan& steps, const slice_cost& of_stage,
               hand_over gradients = hand_over::early) {
  return simulate(steps, even_costs(steps.layout(), of_stage), {}, gradients).value();
}

/// Idle time of the stage that has least of it, in the whole step and between its own first and
/// last action (where the next step may follow at once).
struct idle_time {
  double in_step = 0, within = 0;
};

idle_time idle(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m,
               const slice_cost& cost, hand_over gradients = hand_over::early) {
  const auto ran = run(make(schedule, p, m), cost, gradients);
  const double work = m * (cost.forward + cost.input_gradient + cost.weight_gradient);
  for (const double busy : ran.busy) CHECK(busy == Approx(work));
  return {ran.makespan - work, ran.period - work};
}

std::uint32_t peak(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
  return std::ranges::max(run(make(schedule, p, m), {}).peak_activations);
}

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

TEST_CASE("every generated plan holds as much as its cap says, where micro-batches suffice") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (const auto& schedule : all_schedules()) {
      CAPTURE(schedule.name, p);
      const plan steps = make(schedule, p, 4 * p);
      const auto ran = run(steps, {});
      for (std::uint32_t s = 0; s < p; ++s)
        CHECK(ran.peak_activations[s] == steps.stages[s].memory_cap);
    }
}

TEST_CASE("bubbles of whole backwards equal the published formulas, and lack W handed over early") {
  const slice_cost cost{1.0, 1.5, 1.0};
  const double whole = 3.5;
  constexpr auto published = hand_over::at_end;
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 16; ++m) {
      CAPTURE(p, m);
      for (const auto* name : {"gpipe", "1f1b"}) {
        CHECK(idle({name}, p, m, cost, published).in_step == Approx((p - 1) * whole).margin(1e-9));
        CHECK(idle({name}, p, m, cost).in_step == Approx((p - 1) * (whole - 1)).margin(1e-9));
      }
      CHECK(run(make({"1f1b"}, p, m), cost, published).bubble ==
            Approx((p - 1.0) / (m + p - 1.0)).margin(1e-9));
      if (m % p != 0) continue;
      for (const std::uint32_t v : {2U, 3U, 4U}) {
        CHECK(idle({"interleaved-1f1b", v}, p, m, cost, published).in_step ==
              Approx((p - 1) * whole / v).margin(1e-9));
        CHECK(idle({"interleaved-1f1b", v}, p, m, cost).in_step ==
              Approx((p - 1) * (whole - 1) / v).margin(1e-9));
      }
    }
}

TEST_CASE(
    "an interleaved step of any number of micro-batches is no longer than that of whole rounds") {
  for (std::uint32_t p = 2; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 24; ++m) {
      CAPTURE(p, m);
      const std::uint32_t rounds = (m + p - 1) / p;
      CHECK(run(make({"interleaved-1f1b", 2}, p, m), {}).makespan <=
            run(make({"interleaved-1f1b", 2}, p, rounds * p), {}).makespan + 1e-9);
    }
}

TEST_CASE("bubbles of split backwards equal the published formulas") {
  for (const slice_cost cost : {slice_cost{1, 1, 1}, slice_cost{1, 1, .5}, slice_cost{1, 1.5, .75},
                                slice_cost{1, .8, .6}, slice_cost{2, 1.5, 1}})
    for (std::uint32_t p = 1; p <= 8; ++p)
      for (std::uint32_t m = p; m <= 20; ++m) {
        const auto& [forward, input, weight] = cost;
        CAPTURE(p, m, forward, input, weight);
        CHECK(idle({"zb-h1"}, p, m, cost).in_step ==
              Approx((p - 1) * (forward + input - weight)).margin(1e-9));
        if (m < 2 * p - 1) continue;
        CHECK(idle({"zb-h2"}, p, m, cost).within ==
              Approx((p - 1) * (forward + input - 2 * weight)).margin(1e-9));
        CHECK(idle({"zb-h2"}, p, m, cost).in_step >= (p - 1) * forward - 1e-9);
      }
}

TEST_CASE("zb-v idles only while stages begin one after the other") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 2 * p - 1; m <= 24; ++m) {
      CAPTURE(p, m);
      CHECK(idle({"zb-v"}, p, m, {2, 2, 2}).within == Approx(0).margin(1e-9));
      CHECK(idle({"zb-v"}, p, m, {2, 2, 2}).in_step == Approx(p - 1.0).margin(1e-9));
    }
}

TEST_CASE("peak activations equal the published formulas") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 20; ++m) {
      CAPTURE(p, m);
      const auto all = run(make({"gpipe"}, p, m), {});
      const auto few = run(make({"1f1b"}, p, m), {});
      const auto one = run(forward_through(p, m), {});
      for (std::uint32_t s = 0; s < p; ++s) {
        CHECK(all.peak_activations[s] == m);
        CHECK(few.peak_activations[s] == std::min(m, p - s));
        CHECK(one.peak_activations[s] == 1);
      }
      CHECK(peak({"zb-h1"}, p, m) == std::min(p, m));
      CHECK(peak({"zb-h2"}, p, m) == std::min(2 * p - 1, m));
      CHECK(peak({"zb-v"}, p, m) == 2 * std::min(p, m));
      for (const std::uint32_t v : {2U, 3U, 4U})
        if (m % p == 0)
          CHECK(peak({"interleaved-1f1b", v}, p, m) == std::min(v * m, p * v + p - 1));
    }
}

TEST_CASE("a pipeline of 1,024 stages and 4,096 micro-batches is planned and checked in seconds") {
  const auto cpu_time = [](std::uint32_t stages, std::uint32_t microbatches) {
    const auto begin = std::clock();
    for (const auto* name : {"1f1b", "zb-v"}) CHECK(check(make({name}, stages, microbatches)));
    return std::clock() - begin;
  };
  // 16 times the plan, whatever the machine; what is quadratic takes 256 times as long.
  CHECK(cpu_time(1024, 4096) < 64 * cpu_time(256, 1024));
}

TEST_CASE("an evaluation step fills and drains the pipeline once") {
  const auto ran = run(forward_through(3, 5), {2, 9, 9});
  CHECK(ran.makespan == Approx((5 + 3 - 1) * 2.0));
  CHECK(ran.starts[2] == std::vector<double>{4, 6, 8, 10, 12});
  const auto made_of = [](const schedule_choice& schedule) {
    return run(forward_only(layout_of(schedule, 4).value(), 8), {2, 9, 9}).makespan;
  };
  CHECK(made_of({"interleaved-1f1b", 2}) == Approx(8 * 2.0 + 3));
  // A micro-batch enters each other time a forward takes, and leaves 8 of them later.
  CHECK(made_of({"zb-v"}) == Approx(7 * 2.0 + 8));
}

TEST_CASE("a simulated stage waits for the slower one before it, and for messages") {
  const auto ran = simulate(gpipe(2, 2), {{3, 1, 0}, {1, 1, 0}});
  REQUIRE(ran);
  CHECK(ran->starts[0] == std::vector<double>{0, 3, 8, 9});
  CHECK(ran->starts[1] == std::vector<double>{3, 6, 7, 8});
  CHECK(ran->makespan == 10);
  CHECK(ran->period == 10);
  CHECK(ran->busy == std::vector<double>{8, 4});
  CHECK(ran->bubble == Approx(1 - 12.0 / 20.0));
  const auto late = simulate(gpipe(2, 2), {{3, 1, 0}, {1, 1, 0}}, {.latency = 0.5});
  REQUIRE(late);
  CHECK(late->starts[1] == std::vector<double>{3.5, 6.5, 7.5, 8.5});
  CHECK(late->makespan == 11);
  // Between chunks of one stage nothing travels.
  const auto layout = layout_of({"zb-v"}, 1).value();
  CHECK(simulate(zb_v(1, 2), even_costs(layout, {}), {.latency = 0.5})->makespan == 6);
}

TEST_CASE("messages of a simulated stage travel one after the other each way, beside its work") {
  // The second forward is made at 2 and leaves when the first has, at 5; gradients, made at 11 and
  // 12, leave the other way at once.
  const message_times slow{.latency = 1, .transfer = {0, 4}};
  const auto ran = simulate(gpipe(2, 2), {{1, 1, 0}, {1, 1, 0}}, slow);
  REQUIRE(ran);
  CHECK(ran->starts[1] == std::vector<double>{6, 10, 11, 12});
  CHECK(ran->starts[0] == std::vector<double>{0, 1, 17, 21});
  CHECK(ran->busy == std::vector<double>{4, 4});
  // There and back across two cuts; the third lies within a stage.
  const auto alone = simulate(zb_v(2, 1), {{1, 1, 0}, {1, 1, 0}, {1, 1, 0}, {1, 1, 0}},
                              {.transfer = {0, 10, 10, 10}});
  REQUIRE(alone);
  CHECK(alone->makespan == 8 + 4 * 10);
}

TEST_CASE("a simulation without one usable cost a slice is refused") {
  CHECK_THAT(simulate(gpipe(1, 2), {{1, 1, 1}}, {.transfer = {0, 1}}).error().text,
             ContainsSubstring("2 transfers for 1 slices"));
  CHECK_THAT(simulate(gpipe(1, 2), {{1, 1, 1}}, {.transfer = {-1}}).error().text,
             ContainsSubstring("a transfer must be finite"));
  CHECK_THAT(simulate(gpipe(2, 2), {{1, 1, 1}}).error().text,
             ContainsSubstring("1 costs for 2 slices"));
  for (const double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THAT(simulate(gpipe(2, 2), {{1, 1, 1}, {1, 1, wrong}}).error().text,
               ContainsSubstring("slice 1: a cost must be finite"));
    CHECK_THAT(simulate(gpipe(1, 2), {{1, 1, 1}}, {.latency = wrong}).error().text,
               ContainsSubstring("a latency must be finite"));
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
  const auto judge = [&](const plan& mutant, bool training) {
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
        each_mutation(make(schedule, p, m), [&](const plan& mutant) { judge(mutant, true); });
      each_mutation(forward_through(p, m), [&](const plan& mutant) { judge(mutant, false); });
    }
  CHECK(refused > 1000000);
  CHECK(harmless > 1000);  // gpipe with F4 and B0 swapped on the last stage, for one
}

TEST_CASE("an unknown schedule or an impossible size is refused with what is possible") {
  const auto refusal = [](const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
    const auto made = plan_step(schedule, p, m);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == errc::bad_config);
    return made.error().text;
  };
  CHECK(make({"gpipe"}, 2, 3) == gpipe(2, 3));
  CHECK(make({"1f1b"}, 2, 3) == one_f_one_b(2, 3));
  CHECK(make({"interleaved-1f1b"}, 2, 3) == interleaved_1f1b(2, 3, 2));
  CHECK(refusal({"2f2b"}, 2, 3) ==
        "no schedule called '2f2b'; known schedules: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, "
        "zb-v");
  CHECK(refusal({"gpipe"}, 0, 3) == "stages = 0 is out of range: 1 to 1024");
  CHECK(refusal({"gpipe"}, 1025, 3) == "stages = 1025 is out of range: 1 to 1024");
  CHECK(refusal({"1f1b"}, 2, 0) == "micro-batches = 0 is out of range: 1 to 16384");
  CHECK(refusal({"1f1b"}, 2, 1U << 31) == "micro-batches = 2147483648 is out of range: 1 to 16384");
  CHECK(refusal({"zb-h1", 2}, 2, 3) == "chunks of zb-h1 = 2 is out of range: 1");
  CHECK(refusal({"zb-v", 3}, 2, 3) == "chunks of zb-v = 3 is out of range: 2");
  CHECK(refusal({"interleaved-1f1b", 17}, 2, 3) ==
        "chunks of interleaved-1f1b = 17 is out of range: 2 to 16");
  CHECK(refusal({.given = gpipe(2, 3)}, 3, 3) == "the plan 'gpipe' is for 2 stages, not for 3");
  CHECK(refusal({.given = gpipe(2, 3)}, 2, 4) == "micro-batches = 4 is out of range: 1 to 3");
}

TEST_CASE("a plan that is given serves steps of fewer micro-batches") {
  for (const auto& schedule : all_schedules())
    for (std::uint32_t m = 1; m <= 7; ++m) {
      const auto made = plan_step({.given = make(schedule, 3, 7)}, 3, m);
      REQUIRE(made);
      CAPTURE(schedule.name, m);
      CHECK(made->microbatches == m);
      CHECK(violation_of(*made) == "none");
    }
}

TEST_CASE("a plan's text reads like a schedule and comes back as the same plan") {
  CHECK(to_text(one_f_one_b(2, 2)) ==
        "schedule 1f1b microbatches 2\n"
        "stage 0 cap 2: F0 F1 B0 B1\n"
        "stage 1 cap 1: F0 B0 F1 B1\n");
  CHECK(to_text(zb_h1(2, 2)) ==
        "schedule zb-h1 microbatches 2\n"
        "stage 0 cap 2: F0 F1 I0 W0 I1 W1\n"
        "stage 1 cap 2: F0 I0 F1 I1 W0 W1\n");
  CHECK(to_text(zb_v(1, 1)) ==
        "schedule zb-v microbatches 1 chunks 2 v-shaped\n"
        "stage 0 cap 2: 0F0 1F0 1I0 1W0 0I0 0W0\n");
  for (std::uint32_t p = 1; p <= 5; ++p)
    for (std::uint32_t m = 1; m <= 5; ++m)
      for (const auto& schedule : all_schedules()) {
        const plan steps = make(schedule, p, m);
        CHECK(parse(to_text(steps)).value() == steps);
        CHECK(parse_checked(to_text(steps)).value() == steps);
        CHECK(parse(to_text(forward_only(steps.layout(), m))).value() ==
              forward_only(steps.layout(), m));
      }
  CHECK(
      parse("# by hand\r\n\nschedule x microbatches 1\r\n  stage 0 cap 1 :F0\tB0 # both").value() ==
      plan{"x", 1, {{{f(0), b(0)}, 1}}});
  CHECK(parse("schedule x microbatches 1\nstage 0 cap 0:\n").value() == plan{"x", 1, {{{}, 0}}});
}

TEST_CASE("a plan that breaks a rule is refused with line, column, action and rule") {
  const auto fault = [](std::string_view text) {
    const auto read = parse_checked(text);
    return read ? "none" : read.error().text;
  };
  const std::string head = "# mine\nschedule x microbatches 2\nstage 0 cap 2: F0 F1 B0 B1\n";
  CHECK(fault(head + "stage 1 cap 1: F0 B0 F1 B1") == "none");
  CHECK(fault(head + "stage 1 cap 1: F0 B0  F1 F1 B1") ==
        "line 4, column 26: stage 1: F1 appears twice");
  CHECK(fault(head + "\nstage 1 cap 1: F0 B0 F1  # B1") ==
        "line 5, column 26: stage 1: B1 is missing");
  CHECK(fault(head + "stage 1 cap 1: F0 F1 B0 B1") ==
        "line 4, column 19: stage 1: F1 would hold 2 activations, over the memory cap of 1");
  CHECK(fault("schedule x microbatches 1 chunks 2 looped\nstage 0 cap 2: 1F0 0F0 1B0 0B0") ==
        "line 2, column 16: stage 0: 1F0 waits for ever for its own 0F0");
  CHECK(fault("schedule x microbatches 2\n") == "a plan of 0 stages is out of range: 1 to 1024");
  CHECK(fault("schedule x microbatches 2\nstage 0 cap 1: Q0") ==
        "line 2, column 16: expected an action such as F0 or B3 (F, B, I or W; micro-batches 0 to "
        "16383), found 'Q0'");
}

TEST_CASE("a parse error names line, column, what was expected and what was found") {
  const auto fault = [](std::string_view text) {
    const auto read = parse(text);
    return read ? "none" : read.error().text;
  };
  const std::string head = "schedule x microbatches 2\n";
  CHECK(fault("") == "line 1, column 1: expected 'schedule', found the end of the line");
  CHECK(fault("plan x") == "line 1, column 1: expected 'schedule', found 'plan'");
  CHECK(fault("schedule") ==
        "line 1, column 9: expected the schedule's name, found the end of the line");
  CHECK(fault("schedule x microbatches many") ==
        "line 1, column 25: expected a number from 1 to 16384, found 'many'");
  CHECK(fault("schedule x microbatches 2 3") ==
        "line 1, column 27: expected 'chunks' or the end of the line, found '3'");
  CHECK(fault("schedule x microbatches 2 chunks 1") ==
        "line 1, column 34: expected a number from 2 to 16, found '1'");
  CHECK(fault("schedule x microbatches 2 chunks 2 round") ==
        "line 1, column 36: expected 'looped' or 'v-shaped', found 'round'");
  CHECK(fault(head + "stage 1 cap 2:") == "line 2, column 7: expected '0', found '1'");
  CHECK(fault(head + "stage 0 cap -1:") ==
        "line 2, column 13: expected a number from 0 to 4294967295, found '-1'");
  CHECK(fault(head + "stage 0 cap 2 F0") == "line 2, column 15: expected ':', found 'F0'");
  for (const std::string_view wrong :
       {"X1", "F", "B-1", "F01", "F1x", "f0", "F16384", "F99999999999", "0F1"})
    CHECK(fault(std::string(head).append("stage 0 cap 2: F0 ").append(wrong)) ==
          std::string("line 2, column 19: expected an action such as F0 or B3 (F, B, I or W; "
                      "micro-batches 0 to 16383), found '")
              .append(wrong)
              .append("'"));
  const std::string chunked = "schedule x microbatches 2 chunks 2 looped\nstage 0 cap 2: ";
  for (const std::string_view wrong : {"F0", "2F0", "00F0", "-1F0", "F"})
    CHECK(fault(chunked + std::string(wrong)) ==
          std::string("line 2, column 16: expected an action such as 0F0 or 1B3 (chunks 0 to 1; F, "
                      "B, I or W; micro-batches 0 to 16383), found '")
              .append(wrong)
              .append("'"));
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

TEST_CASE("a chart shows when each stage does what") {
  const plan steps = one_f_one_b(2, 2);
  const auto costs = even_costs(steps.layout(), {1, 1, 1});
  const auto ran = simulate(steps, costs, {}, hand_over::at_end).value();
  CHECK(to_terminal(steps, costs, ran, 100, false) ==
        "0 |F0-F1-      B0----   B1----|\n"
        "1 |   F0-B0----F1-B1----      |\n");
  CHECK(to_terminal(steps, costs, ran, 9, false) ==
        "0 |FF  B0 B1|\n"
        "1 | FB0FB1  |\n");
  const auto coloured = to_terminal(steps, costs, ran, 100, true);
  CHECK_THAT(coloured, ContainsSubstring("\033[44;97mF1-\033[0m"));
  const auto picture = to_svg({"a<b", 2, steps.stages}, costs, ran);
  CHECK_THAT(picture, ContainsSubstring("a&lt;b, 2 stages, 2 micro-batches: 9, bubble 33.3333 %"));
  CHECK_THAT(picture, ContainsSubstring("<title>B1: 7 to 9</title>"));
  CHECK_THAT(picture, ContainsSubstring(">stage 1</text>"));
}

TEST_CASE("a schedule of one's own is named like any other, and has to keep to what it says") {
  schedule_registry known = built_in_schedules();
  known.add("mine", {[](std::uint32_t stages, std::uint32_t microbatches, std::uint32_t chunks) {
                       return interleaved_1f1b(stages, microbatches, chunks);
                     },
                     2, 4});
  const schedule_choice mine{.name = "mine", .chunks = 3, .known = known};
  CHECK(layout_of(mine, 2).value() == model_layout{2, 3});
  CHECK(plan_step(mine, 2, 4).value() == interleaved_1f1b(2, 4, 3));
  CHECK(layout_of({.name = "mine", .known = known}, 2).value().chunks == 2);
  CHECK(layout_of({.name = "mine", .chunks = 5, .known = known}, 2).error().text ==
        "chunks of mine = 5 is out of range: 2 to 4");
  CHECK(layout_of({.name = "mine"}, 2).error().text ==
        "no schedule called 'mine'; known schedules: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, "
        "zb-v");
  known.add("mine", {[](std::uint32_t stages, std::uint32_t microbatches, std::uint32_t) {
              return one_f_one_b(stages + 1, microbatches);
            }});
  CHECK(plan_step({.name = "mine", .known = known}, 2, 4).error().text ==
        "the schedule 'mine' makes plans of other stages, chunks or micro-batches than it was "
        "asked for");
  CHECK(known.names().size() == built_in_schedules().names().size() + 1);  // replaced in its place
}
