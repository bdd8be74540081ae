#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/schedule/simulation.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr action f(std::uint32_t i) {
  return {action_kind::forward, {i}};
}
constexpr action b(std::uint32_t i) {
  return {action_kind::backward, {i}};
}

plan two_stages(std::vector<action> first, std::vector<action> last, std::uint32_t microbatches) {
  return {"hand", microbatches, {{std::move(first), 8}, {std::move(last), 8}}};
}

std::string violation(const plan& steps, step_kind kind = step_kind::training) {
  const auto checked = check(steps, kind);
  return checked ? "none" : checked.error().text;
}

/// A second opinion on a plan that shares nothing with the checker: hands messages around until
/// nobody can move, and counts what happened. True when the step did exactly what it should.
class oracle {
 public:
  explicit oracle(const plan& steps, bool training)
      : plan_(steps), training_(training), at_(steps.stages.size()) {}

  bool holds() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < at_.size(); ++s) moved = step(s) || moved;
    }
    for (std::size_t s = 0; s < at_.size(); ++s)
      if (at_[s] != plan_.stages[s].actions.size()) return false;
    const std::size_t kinds = training_ ? 2 : 1;
    return good_ && done_.size() == kinds * at_.size() * plan_.microbatches;
  }

 private:
  using event = std::tuple<std::size_t, action_kind, std::uint32_t>;

  bool step(std::size_t s) {
    if (at_[s] == plan_.stages[s].actions.size()) return false;
    const auto [kind, microbatch] = plan_.stages[s].actions[at_[s]];
    const std::uint32_t i = microbatch.value;
    const bool forward = kind == action_kind::forward;
    const bool source = forward ? s == 0 : s + 1 == at_.size();
    if (!source && !done_.contains({forward ? s - 1 : s + 1, kind, i})) return false;
    if (!forward && !done_.contains({s, action_kind::forward, i})) return false;
    good_ = good_ && i < plan_.microbatches && (forward || training_);
    good_ = good_ && (i == 0 || done_.contains({s, kind, i - 1}));
    good_ = good_ && done_.insert({s, kind, i}).second;
    ++at_[s];
    std::uint32_t held = 1;
    for (std::uint32_t j = 0; j < plan_.microbatches && training_ && forward; ++j)
      held += j != i && done_.contains({s, action_kind::forward, j}) &&
              !done_.contains({s, action_kind::backward, j});
    good_ = good_ && (!forward || held <= plan_.stages[s].memory_cap);
    return true;
  }

  const plan& plan_;
  bool training_;
  bool good_ = true;
  std::vector<std::size_t> at_;
  std::set<event> done_;
};

/// Calls `visit` with every plan that differs from `from` by one action.
void each_mutation(const plan& from, const std::function<void(const plan&)>& visit) {
  for (std::size_t s = 0; s < from.stages.size(); ++s) {
    const auto with = [&](auto&& change) {
      plan mutant = from;
      change(mutant.stages[s].actions);
      if (mutant != from) visit(mutant);
    };
    const auto size = static_cast<std::ptrdiff_t>(from.stages[s].actions.size());
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      with([&](auto& list) { list.erase(list.begin() + i); });
      for (std::ptrdiff_t at = 0; at <= size; ++at)
        with([&](auto& list) { list.insert(list.begin() + at, action(list[i])); });
      for (std::ptrdiff_t j = i + 1; j < size; ++j)
        with([&](auto& list) { std::swap(list[i], list[j]); });
      with([&](auto& list) {
        list[i].kind =
            list[i].kind == action_kind::forward ? action_kind::backward : action_kind::forward;
      });
      for (std::uint32_t other = 0; other <= from.microbatches; ++other)
        with([&](auto& list) { list[i].microbatch.value = other; });
    }
  }
}

using generator = plan (*)(std::uint32_t, std::uint32_t);

}  // namespace

TEST_CASE("every generated plan passes the checker and the oracle") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 8; ++m) {
      CAPTURE(p, m);
      for (const generator make : {gpipe, one_f_one_b}) {
        CHECK(violation(make(p, m)) == "none");
        CHECK(oracle(make(p, m), true).holds());
      }
      CHECK(violation(forward_only(p, m), step_kind::evaluation) == "none");
      CHECK(oracle(forward_only(p, m), false).holds());
      CHECK(violation(forward_only(p, m)) != "none");
    }
}

TEST_CASE("bubbles equal the published formulas") {
  const stage_cost cost{1.0, 2.5};
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 8; ++m)
      for (const generator make : {gpipe, one_f_one_b}) {
        CAPTURE(p, m);
        const auto ran = simulate(make(p, m), std::vector<stage_cost>(p, cost));
        REQUIRE(ran);
        CHECK(ran->makespan == Approx((m + p - 1) * (cost.forward + cost.backward)));
        CHECK(ran->bubble == Approx((p - 1.0) / (m + p - 1.0)).margin(1e-12));
        for (const double busy : ran->busy)
          CHECK(ran->makespan - busy == Approx((p - 1) * (cost.forward + cost.backward)));
      }
}

TEST_CASE("peak activations equal the published formulas") {
  for (std::uint32_t p = 1; p <= 8; ++p)
    for (std::uint32_t m = 1; m <= 8; ++m) {
      CAPTURE(p, m);
      const std::vector<stage_cost> costs(p);
      const auto all = simulate(gpipe(p, m), costs);
      const auto few = simulate(one_f_one_b(p, m), costs);
      const auto one = simulate(forward_only(p, m), costs);
      REQUIRE((all && few && one));
      for (std::uint32_t s = 0; s < p; ++s) {
        CHECK(all->peak_activations[s] == m);
        CHECK(few->peak_activations[s] == std::min(m, p - s));
        CHECK(one->peak_activations[s] == 1);
      }
    }
}

TEST_CASE("an evaluation step fills and drains the pipeline once") {
  const auto ran = simulate(forward_only(3, 5), std::vector<stage_cost>(3, {2.0, 9.0}));
  REQUIRE(ran);
  CHECK(ran->makespan == Approx((5 + 3 - 1) * 2.0));
  CHECK(ran->starts[2] == std::vector<double>{4, 6, 8, 10, 12});
}

TEST_CASE("a simulated stage waits for the slower one before it") {
  const auto ran = simulate(gpipe(2, 2), {{3, 1}, {1, 1}});
  REQUIRE(ran);
  CHECK(ran->starts[0] == std::vector<double>{0, 3, 8, 9});
  CHECK(ran->starts[1] == std::vector<double>{3, 6, 7, 8});
  CHECK(ran->makespan == 10);
  CHECK(ran->busy == std::vector<double>{8, 4});
  CHECK(ran->bubble == Approx(1 - 12.0 / 20.0));
}

TEST_CASE("a simulation without one usable cost a stage is refused") {
  CHECK_THAT(simulate(gpipe(2, 2), {{1, 1}}).error().text,
             ContainsSubstring("1 costs for 2 stages"));
  for (const double wrong : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK_THAT(simulate(gpipe(2, 2), {{1, 1}, {1, wrong}}).error().text,
               ContainsSubstring("stage 1: a cost must be finite"));
}

TEST_CASE("every rule of the checker names stage, action and rule") {
  const std::vector<action> good{f(0), f(1), b(0), b(1)};
  const auto last = [&](const std::vector<action>& list) {
    return violation(two_stages(good, list, 2));
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
  CHECK(violation(two_stages({f(0), b(0), f(1), b(1)}, good, 2)) ==
        "stage 0: B0 waits for ever for B0 of stage 1");
  CHECK(violation(gpipe(2, 2), step_kind::evaluation) ==
        "stage 0: B0 in an evaluation step, which has no backward");
  plan capped = gpipe(2, 3);
  capped.stages[1].memory_cap = 2;
  CHECK(violation(capped) == "stage 1: F2 would hold 3 micro-batches, over the memory cap of 2");
  CHECK(violation({"none", 1, {}}) == "a plan of 0 stages is out of range: 1 to 1024");
  CHECK_THAT(violation(gpipe(1, 0)), ContainsSubstring("0 micro-batches are out of range"));
  CHECK(check(capped).error().code == errc::bad_config);
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
  for (std::uint32_t p = 1; p <= 5; ++p)
    for (std::uint32_t m = 1; m <= 5; ++m) {
      each_mutation(gpipe(p, m), [&](const plan& mutant) { judge(mutant, true); });
      each_mutation(one_f_one_b(p, m), [&](const plan& mutant) { judge(mutant, true); });
      each_mutation(forward_only(p, m), [&](const plan& mutant) { judge(mutant, false); });
    }
  CHECK(refused > 10000);
  CHECK(harmless > 0);  // gpipe with F4 and B0 swapped on the last stage, for one
}

TEST_CASE("an unknown schedule or an impossible size is refused with what is possible") {
  CHECK(make_plan("gpipe", 2, 3).value() == gpipe(2, 3));
  CHECK(make_plan("1f1b", 2, 3).value() == one_f_one_b(2, 3));
  const auto unknown = make_plan("2f2b", 2, 3);
  CHECK(unknown.error() ==
        error{errc::bad_config, "no schedule called '2f2b'; known schedules: gpipe, 1f1b"});
  CHECK(make_plan("gpipe", 0, 3).error().text == "stages = 0 is out of range: 1 to 1024");
  CHECK(make_plan("gpipe", 1025, 3).error().text == "stages = 1025 is out of range: 1 to 1024");
  CHECK(make_plan("1f1b", 2, 0).error().text == "microbatches = 0 is out of range: 1 to 16384");
  CHECK(make_plan("1f1b", 2, 1u << 31).error().code == errc::bad_config);
}

TEST_CASE("a plan's text reads like a schedule and comes back as the same plan") {
  CHECK(to_text(one_f_one_b(2, 2)) ==
        "schedule 1f1b microbatches 2\n"
        "stage 0 cap 2: F0 F1 B0 B1\n"
        "stage 1 cap 1: F0 B0 F1 B1\n");
  for (std::uint32_t p = 1; p <= 5; ++p)
    for (std::uint32_t m = 1; m <= 5; ++m)
      for (const generator make : {gpipe, one_f_one_b, forward_only})
        CHECK(parse(to_text(make(p, m))).value() == make(p, m));
  CHECK(
      parse("# by hand\r\n\nschedule x microbatches 1\r\n  stage 0 cap 1 :F0\tB0 # both").value() ==
      plan{"x", 1, {{{f(0), b(0)}, 1}}});
  CHECK(parse("schedule x microbatches 1\nstage 0 cap 0:\n").value() == plan{"x", 1, {{{}, 0}}});
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
        "line 1, column 27: expected the end of the line, found '3'");
  CHECK(fault(head + "stage 1 cap 2:") == "line 2, column 7: expected '0', found '1'");
  CHECK(fault(head + "stage 0 cap -1:") ==
        "line 2, column 13: expected a number from 0 to 4294967295, found '-1'");
  CHECK(fault(head + "stage 0 cap 2 F0") == "line 2, column 15: expected ':', found 'F0'");
  for (const std::string_view wrong :
       {"X1", "F", "B-1", "F01", "F1x", "f0", "F16384", "F99999999999"})
    CHECK(fault(std::string(head).append("stage 0 cap 2: F0 ").append(wrong)) ==
          std::string("line 2, column 19: expected an action such as F0 or B3 (micro-batches 0 to "
                      "16383), found '")
              .append(wrong)
              .append("'"));
}
