// Edges of a stage that are started over, with a neighbour that takes a lost one's place.
#include <catch2/catch_test_macros.hpp>

#include "tests/unit/engine/step/stage_core_steps.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::engine::testing;

namespace {

/// A middle stage that logs its edges and has done F0, F1 and B0.
stage_core core_in_the_middle() {
  stage_core core(4, execution::ready, true);
  static_cast<void>(core.begin(middle(at(1))));
  for (const std::uint32_t index : {0U, 1U}) {
    static_cast<void>(core.input_arrived(at(1), {index}));
    static_cast<void>(core.action_done(at(1), f(index)));
  }
  static_cast<void>(core.gradient_arrived(at(1), {0}));
  static_cast<void>(core.action_done(at(1), b(0)));
  return core;
}

}  // namespace

TEST_CASE("what a new neighbour sends again and was used only gives its credit back") {
  auto core = core_in_the_middle();
  core.start_over({.before = {0}}, at(1));
  CHECK(core.is_repeat(edge::input, at(1), {0}));
  CHECK(core.input_arrived(at(1), {0}).value() ==
        stage_effects{grant_credit{at(1), edge::input, {0}, 0}});
  CHECK_FALSE(core.is_repeat(edge::input, at(1), {0}));
  CHECK(core.input_arrived(at(1), {0}).error().code == errc::bad_frame);
  CHECK(core.input_arrived(at(1), {1}).value() ==
        stage_effects{grant_credit{at(1), edge::input, {1}, 0}});
  // The gradients of the old neighbour, for its place's next owner.
  CHECK(core.resume() == send(at(1), b(0)));
}

TEST_CASE("what a lost neighbour had sent and was not used comes again, and is used then") {
  stage_core core(4, execution::ready, true);
  static_cast<void>(core.begin(middle(at(1))));
  static_cast<void>(core.input_arrived(at(1), {1}));
  static_cast<void>(core.input_arrived(at(2), {0}));  // of a step that is not announced yet
  core.start_over({.before = {0}}, at(1));
  CHECK_FALSE(core.is_repeat(edge::input, at(1), {1}));
  CHECK(core.input_arrived(at(1), {0}).value() == start(at(1), f(0)));
  CHECK(core.input_arrived(at(1), {1}).value().empty());
  CHECK(core.input_arrived(at(2), {0}).value().empty());
}

TEST_CASE("a step that is over is sent again to a new neighbour until it is forgotten") {
  for (const bool is_forgotten : {false, true}) {
    auto core = core_in_the_middle();
    static_cast<void>(core.gradient_arrived(at(1), {1}));
    static_cast<void>(core.action_done(at(1), b(1)));
    static_cast<void>(core.update_done(at(1)));
    core.forget_before(at(is_forgotten ? 2 : 1));
    core.start_over({.after = {0}}, at(1));
    CHECK(core.is_repeat(edge::gradient, at(1), {1}) == !is_forgotten);
    CHECK(core.resume() ==
          (is_forgotten ? stage_effects{} : send(at(1), f(0)) + send(at(1), f(1))));
    const auto again = core.gradient_arrived(at(1), {0});
    if (is_forgotten)
      CHECK(again.error().code == errc::stale);
    else
      CHECK(again.value() == stage_effects{grant_credit{at(1), edge::gradient, {0}, 0}});
  }
}

TEST_CASE("a stage that logs nothing keeps nothing of what is over") {
  stage_core core(4);
  REQUIRE(core.begin(middle(at(1), 1)));
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.action_done(at(1), f(0)));
  REQUIRE(core.gradient_arrived(at(1), {0}));
  REQUIRE(core.action_done(at(1), b(0)));
  REQUIRE(core.update_done(at(1)));
  core.start_over({.before = {0}, .after = {0}}, at(1));
  CHECK_FALSE(core.is_repeat(edge::input, at(1), {0}));
  CHECK(core.resume() == nothing);
}

TEST_CASE("an evaluation is sent and expected again like a training step, until it is forgotten") {
  for (const bool is_forgotten : {false, true}) {
    INFO(is_forgotten);
    stage_core core(2, execution::ready, true);
    for (const std::uint64_t step : {1, 2}) static_cast<void>(core.begin(evaluation(at(step))));
    for (const std::uint32_t index : {0U, 1U}) {
      static_cast<void>(core.input_arrived(at(1), {index}));
      static_cast<void>(core.action_done(at(1), f(index)));
      static_cast<void>(core.credit_arrived(edge::input, at(1), {index}));
    }
    CHECK(core.input_arrived(at(2), {0}).value() == start(at(2), f(0)));
    static_cast<void>(core.action_done(at(2), f(0)));
    if (is_forgotten) core.forget(at(1));
    core.start_over({.before = {0}, .after = {0}}, at(1));
    CHECK(core.is_repeat(edge::input, at(1), {1}) == !is_forgotten);
    CHECK(core.is_repeat(edge::input, at(2), {0}));
    CHECK_FALSE(core.is_repeat(edge::input, at(2), {1}));
    CHECK_FALSE(core.is_repeat(edge::gradient, at(1), {0}));
    // No forward starts before what is due before it has gone.
    CHECK(core.input_arrived(at(2), {1}).value() == nothing);
    if (is_forgotten) {
      CHECK(core.resume() == send(at(2), f(0)) + start(at(2), f(1)));
    } else {
      CHECK(core.resume() == send(at(1), f(0)) + send(at(1), f(1)));
      CHECK(core.credit_arrived(edge::input, at(1), {0}).value() == send(at(2), f(0)));
      CHECK(core.credit_arrived(edge::input, at(1), {1}).value() == start(at(2), f(1)));
    }
  }
}

TEST_CASE("a neighbour that is lost twice sends what was used once more each time") {
  auto core = core_in_the_middle();
  core.start_over({.before = {0}}, at(1));
  static_cast<void>(core.resume());
  static_cast<void>(core.input_arrived(at(1), {0}));
  core.start_over({.before = {0}}, at(1));
  CHECK(core.is_repeat(edge::input, at(1), {0}));
  CHECK(core.is_repeat(edge::input, at(1), {1}));
  CHECK(core.resume() == send(at(1), b(0)));
}

TEST_CASE("outputs made while an edge is started over wait for its resumption") {
  auto core = core_in_the_middle();
  core.start_over({.before = {0}, .after = {}}, at(1));
  static_cast<void>(core.gradient_arrived(at(1), {1}));
  CHECK(core.action_done(at(1), b(1)).value() ==
        stage_effects{step_finished{at(1), step_kind::training}});
  CHECK(core.resume() == send(at(1), b(0)) + send(at(1), b(1)));
}

TEST_CASE("nothing of an older epoch comes once more") {
  auto core = core_in_the_middle();
  core.start_over({.before = {0}}, at(1));
  REQUIRE(core.begin(middle(at(1, 2))));
  CHECK_FALSE(core.is_repeat(edge::input, at(1), {0}));
  auto over = core_in_the_middle();
  REQUIRE(over.gradient_arrived(at(1), {1}));
  REQUIRE(over.action_done(at(1), b(1)));
  REQUIRE(over.update_done(at(1)));
  REQUIRE(over.begin(middle(at(1, 2))));
  over.start_over({.before = {0}}, at(1));
  CHECK_FALSE(over.is_repeat(edge::input, at(1), {0}));
}

TEST_CASE("what a neighbour sends once more is forgotten with that neighbour, and that alone") {
  auto core = core_in_the_middle();
  core.start_over({.after = {0}}, at(1));
  core.start_over({.before = {0}}, at(1));
  CHECK(core.is_repeat(edge::gradient, at(1), {0}));
  CHECK(core.is_repeat(edge::input, at(1), {0}));
  core.start_over({.before = {0}}, at(2));
  CHECK(core.is_repeat(edge::gradient, at(1), {0}));
  CHECK_FALSE(core.is_repeat(edge::input, at(1), {0}));
}

TEST_CASE("a neighbour may be replaced before the first step") {
  stage_core core(4, execution::ready, true);
  core.start_over({.before = {0}, .after = {0}}, at(1));
  CHECK(core.resume() == nothing);
  REQUIRE(core.input_arrived(at(1), {0}));
  CHECK(core.begin(middle(at(1))).value() == start(at(1), f(0)));
}

TEST_CASE("labels that came early stay when the neighbour that sends inputs is replaced") {
  stage_core core(4, execution::ready, true);
  REQUIRE(core.target_arrived(at(1), {0}));
  REQUIRE(core.input_arrived(at(1), {0}));
  core.start_over({.before = {0}}, at(1));
  REQUIRE(core.begin(last(at(1), 1)));
  CHECK(core.input_arrived(at(1), {0}).value() ==
        start(at(1), f(0)) + stage_effects{grant_credit{at(1), edge::target, {0}}});
}

TEST_CASE("what all chunks have sent to a neighbour is sent again") {
  stage_core core(4, execution::ready, true);
  REQUIRE(core.begin(planned("0F0 1F0 1B0 0B0", 2, 1, 2)));
  const action first{action_kind::forward, {0}, 0}, second{action_kind::forward, {0}, 1};
  for (const auto& each : {first, second}) {
    REQUIRE(core.input_arrived(at(1), {0}, each.chunk));
    REQUIRE(core.action_done(at(1), each));
  }
  core.start_over({.after = {0, 1}}, at(1));
  CHECK(core.resume() == send(at(1), first) + send(at(1), second));
}

TEST_CASE("gradients of a forgotten step are not sent again") {
  for (const bool is_alone : {false, true}) {
    auto core = core_in_the_middle();
    REQUIRE(core.gradient_arrived(at(1), {1}));
    REQUIRE(core.action_done(at(1), b(1)));
    REQUIRE(core.update_done(at(1)));
    is_alone ? core.forget(at(1)) : core.forget_before(at(2));
    core.start_over({.before = {0}}, at(1));
    CHECK(core.resume() == nothing);
  }
}

TEST_CASE("a stage knows which outputs wait for a credit") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(middle(at(1))));
  for (std::uint32_t n = 0; n < 2; ++n) {
    REQUIRE(core.input_arrived(at(1), {n}));
    REQUIRE(core.action_done(at(1), f(n)));
  }
  CHECK_FALSE(core.holds(edge::input, at(1), {0}));
  CHECK(core.holds(edge::input, at(1), {1}));
  CHECK_FALSE(core.holds(edge::gradient, at(1), {1}));
  CHECK_FALSE(core.holds(edge::input, at(1), {1}, 1));
}

TEST_CASE("what a new feeder sends again and was used only gives its credits back") {
  stage_core core(4, execution::ready, true);
  REQUIRE(core.begin(last(at(1))));
  for (const std::uint32_t index : {0U, 1U}) {
    static_cast<void>(core.input_arrived(at(1), {index}));
    static_cast<void>(core.target_arrived(at(1), {index}));
  }
  core.start_over({.data = 0, .labels = 0}, at(1));
  // F0 runs; what F1 waits for comes again.
  for (const edge what : {edge::input, edge::target}) {
    CHECK(core.is_repeat(what, at(1), {0}));
    CHECK_FALSE(core.is_repeat(what, at(1), {1}));
  }
  CHECK(core.target_arrived(at(1), {0}).value() ==
        stage_effects{grant_credit{at(1), edge::target, {0}, 0}});
  CHECK(core.input_arrived(at(1), {0}).value() ==
        stage_effects{grant_credit{at(1), edge::input, {0}, 0}});
  REQUIRE(core.input_arrived(at(1), {1}));
  REQUIRE(core.target_arrived(at(1), {1}));
  CHECK(core.target_arrived(at(1), {1}).error().code == errc::bad_frame);
}

TEST_CASE("a new feeder sends the labels of a step that is over again until it is forgotten") {
  for (const bool is_forgotten : {false, true}) {
    stage_core core(4, execution::ready, true);
    REQUIRE(core.begin(last(at(1), 1)));
    REQUIRE(core.input_arrived(at(1), {0}));
    REQUIRE(core.target_arrived(at(1), {0}));
    REQUIRE(core.action_done(at(1), f(0)));
    REQUIRE(core.action_done(at(1), b(0)));
    REQUIRE(core.update_done(at(1)));
    core.forget_before(at(is_forgotten ? 2 : 1));
    core.start_over({.labels = 0}, at(1));
    CHECK(core.is_repeat(edge::target, at(1), {0}) == !is_forgotten);
    CHECK_FALSE(core.is_repeat(edge::input, at(1), {0}));  // another sends those
  }
}

TEST_CASE("labels that came early come again with a new feeder, and inputs of another stay") {
  stage_core core(4, execution::ready, true);
  REQUIRE(core.target_arrived(at(1), {0}));
  REQUIRE(core.input_arrived(at(1), {0}));
  core.start_over({.labels = 0}, at(1));
  REQUIRE(core.begin(last(at(1), 1)));
  CHECK(core.target_arrived(at(1), {0}).value() ==
        start(at(1), f(0)) + stage_effects{grant_credit{at(1), edge::target, {0}}});
}
