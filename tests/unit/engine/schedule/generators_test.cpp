#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/simulation.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/engine/schedule/plans.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

simulation run(const plan& steps, const slice_cost& of_stage) {
  return simulate(steps, even_costs(steps.layout(), of_stage)).value();
}

/// Idle time of the stage that has least of it, in the whole step and between its own first and
/// last action (where the next step may follow at once).
struct idle_time {
  double in_step = 0, within = 0;
};

idle_time idle(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m,
               const slice_cost& cost) {
  const auto ran = run(make(schedule, p, m), cost);
  const double work = m * (cost.forward + cost.input_gradient + cost.weight_gradient);
  for (const double busy : ran.busy) CHECK(busy == Approx(work));
  return {ran.makespan - work, ran.period - work};
}

std::uint32_t peak(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
  return std::ranges::max(run(make(schedule, p, m), {}).peak_activations);
}

}  // namespace

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
  // Published formulas hand a gradient over when all of a backward is done.
  const slice_cost published{1.0, whole - 1.0, 0.0};
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 16; ++m) {
      CAPTURE(p, m);
      for (const auto* name : {"gpipe", "1f1b"}) {
        CHECK(idle({name}, p, m, published).in_step == Approx((p - 1) * whole).margin(1e-9));
        CHECK(idle({name}, p, m, cost).in_step == Approx((p - 1) * (whole - 1)).margin(1e-9));
      }
      CHECK(run(make({"1f1b"}, p, m), published).bubble ==
            Approx((p - 1.0) / (m + p - 1.0)).margin(1e-9));
      if (m % p != 0) continue;
      for (const std::uint32_t v : {2U, 3U, 4U}) {
        CHECK(idle({"interleaved-1f1b", v}, p, m, published).in_step ==
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
  const auto ran = simulate(gpipe(2, 2), {{3, 1, 0}, {1, 1, 0}}).value();
  CHECK(ran.starts[0] == std::vector<double>{0, 3, 8, 9});
  CHECK(ran.starts[1] == std::vector<double>{3, 6, 7, 8});
  CHECK(ran.makespan == 10);
  CHECK(ran.period == 10);
  CHECK(ran.busy == std::vector<double>{8, 4});
  CHECK(ran.bubble == Approx(1 - 12.0 / 20.0));
  const auto late = simulate(gpipe(2, 2), {{3, 1, 0}, {1, 1, 0}}, {.latency = 0.5}).value();
  CHECK(late.starts[1] == std::vector<double>{3.5, 6.5, 7.5, 8.5});
  CHECK(late.makespan == 11);
  // Between chunks of one stage nothing travels.
  const auto layout = layout_of({"zb-v"}, 1).value();
  CHECK(simulate(zb_v(1, 2), even_costs(layout, {}), {.latency = 0.5})->makespan == 6);
}

TEST_CASE("messages of a simulated stage travel one after the other each way, beside its work") {
  // The second forward is made at 2 and leaves when the first has, at 5; gradients, made at 11 and
  // 12, leave the other way at once.
  const message_times slow{.latency = 1, .transfer = {0, 4}};
  const auto ran = simulate(gpipe(2, 2), {{1, 1, 0}, {1, 1, 0}}, slow).value();
  CHECK(ran.starts[1] == std::vector<double>{6, 10, 11, 12});
  CHECK(ran.starts[0] == std::vector<double>{0, 1, 17, 21});
  CHECK(ran.busy == std::vector<double>{4, 4});
  // There and back across two cuts; the third lies within a stage.
  const auto alone = simulate(zb_v(2, 1), {{1, 1, 0}, {1, 1, 0}, {1, 1, 0}, {1, 1, 0}},
                              {.transfer = {0, 10, 10, 10}})
                         .value();
  CHECK(alone.makespan == 8 + 4 * 10);
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

TEST_CASE("an unknown schedule or an impossible size is refused with what is possible") {
  const auto refusal = [](const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
    return error_of(plan_step(schedule, p, m), errc::bad_config).text;
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
      const auto made = plan_step({.given = make(schedule, 3, 7)}, 3, m).value();
      CAPTURE(schedule.name, m);
      CHECK(made.microbatches == m);
      CHECK(violation_of(made) == "none");
    }
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
