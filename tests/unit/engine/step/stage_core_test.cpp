#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "tests/refusal.hpp"
#include "tests/unit/engine/step/stage_core_steps.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::engine::testing;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("an action starts when its input is there and the one before it is done") {
  stage_core core;
  CHECK(core.waiting_for() == "no step is announced");
  CHECK(core.begin(middle(at(1))).value() == nothing);
  CHECK(core.waiting_for() == "step 1 of epoch 1: F0 waits for its input");
  CHECK(core.input_arrived(at(1), {1}).value() == nothing);
  CHECK(core.is_idle());
  CHECK(core.input_arrived(at(1), {0}).value() == start(at(1), f(0)));
  CHECK_FALSE(core.is_idle());
  CHECK(core.waiting_for() == "step 1 of epoch 1: F0 runs");
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)) + start(at(1), f(1)));
  CHECK(core.gradient_arrived(at(1), {0}).value() == nothing);
  CHECK(core.action_done(at(1), f(1)).value() == send(at(1), f(1)) + start(at(1), b(0)));
  CHECK(core.action_done(at(1), b(0)).value() == send(at(1), b(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: B1 waits for its gradient");
  CHECK(core.gradient_arrived(at(1), {1}).value() == start(at(1), b(1)));
  CHECK(core.action_done(at(1), b(1)).value() ==
        send(at(1), b(1)) + stage_effects{step_finished{at(1), step_kind::training}});
  CHECK(core.waiting_for() == "step 1 of epoch 1 waits for its optimizer update");
  CHECK(core.update_done(at(1)).value() == nothing);
  CHECK(core.waiting_for() == "no step is announced");
}

TEST_CASE("the last stage needs targets and makes its own gradients") {
  stage_core core;
  REQUIRE(core.begin(last(at(1), 1)));
  CHECK(core.input_arrived(at(1), {0}).value() == nothing);
  CHECK(core.waiting_for() == "step 1 of epoch 1: F0 waits for its target");
  CHECK(core.target_arrived(at(1), {0}).value() ==
        start(at(1), f(0)) + stage_effects{grant_credit{at(1), edge::target, {0}}});
  CHECK(core.action_done(at(1), f(0)).value() == stage_effects{start_action{at(1), b(0)}});
  CHECK(core.action_done(at(1), b(0)).value() ==
        send(at(1), b(0)) + stage_effects{step_finished{at(1), step_kind::training}});
}

TEST_CASE("a gradient that overtakes the news of its forward is kept") {
  stage_core core;
  REQUIRE(core.begin(middle(at(1), 1)));
  REQUIRE(core.input_arrived(at(1), {0}));
  CHECK(core.gradient_arrived(at(1), {0}).value() == nothing);
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)) + start(at(1), b(0)));
}

TEST_CASE("a queued step starts after the optimizer's update of the one before it") {
  stage_core core;
  REQUIRE(core.begin(middle(at(1))));
  REQUIRE(core.begin(middle(at(2))));
  REQUIRE(core.input_arrived(at(2), {0}));
  run_to_update(core, at(1));
  CHECK(core.update_done(at(1)).value() == start(at(2), f(0)));
}

TEST_CASE("an evaluation step needs no update") {
  stage_core core;
  REQUIRE(core.begin(evaluation(at(1), 1)));
  REQUIRE(core.begin(middle(at(2), 1)));
  REQUIRE(core.input_arrived(at(2), {0}));
  CHECK(core.input_arrived(at(1), {0}).value() == start(at(1), f(0)));
  CHECK(core.action_done(at(1), f(0)).value() ==
        send(at(1), f(0)) + stage_effects{step_finished{at(1), step_kind::evaluation}} +
            start(at(2), f(0)));
  CHECK(core.update_done(at(1)).error().code == errc::stale);
}

TEST_CASE("arrivals wait for the announcement of their step") {
  stage_core core;
  CHECK(core.input_arrived(at(5), {0}).value() == nothing);
  CHECK(core.input_arrived(at(6), {1}).value() == nothing);
  CHECK(core.input_arrived(at(7), {0}).error().code == errc::bad_frame);
  CHECK(core.begin(middle(at(5), 1)).value() == start(at(5), f(0)));
  CHECK(core.input_arrived(at(7), {0}).value() == nothing);
  CHECK(
      core.input_arrived(at(8), {0}).error() ==
      error{errc::bad_frame, "step 8 of epoch 1 is more than 2 steps ahead of step 5 of epoch 1"});
  CHECK(core.begin(middle(at(6))).value() == nothing);
  CHECK(core.input_arrived(at(6), {1}).error() ==
        error{errc::bad_frame, "step 6 of epoch 1: the input of micro-batch 1 arrived twice"});
}

TEST_CASE("what is over is refused as stale, by name") {
  stage_core core;
  REQUIRE(core.begin(middle(at(3, 2))));
  run_to_update(core, at(3, 2));
  REQUIRE(core.update_done(at(3, 2)));
  const auto late = core.input_arrived(at(3, 2), {0});
  CHECK(late.error() == error{errc::stale,
                              "the input of micro-batch 0 for step 3 of epoch 2, which is over: "
                              "step 3 of epoch 2 is the last one announced"});
  CHECK(core.gradient_arrived(at(9, 1), {0}).error().code == errc::stale);
  CHECK(core.begin(middle(at(3, 2))).error().code == errc::stale);
  CHECK(core.begin(middle(at(4, 1))).error().code == errc::stale);
  CHECK(core.update_done(at(3, 2)).error().code == errc::stale);
  CHECK(core.action_done(at(2, 2), f(0)).error().code == errc::stale);
  CHECK(core.action_done(at(3, 2), f(0)).error().code == errc::stale);
}

TEST_CASE("what does not fit the step is refused as a bad frame, by name") {
  stage_core core;
  REQUIRE(core.begin(middle(at(1))));
  const auto text = [](const auto& refused) {
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::bad_frame);
    return refused.error().text;
  };
  CHECK_THAT(text(core.input_arrived(at(1), {2})), ContainsSubstring("the step has 2"));
  CHECK_THAT(text(core.target_arrived(at(1), {0})), ContainsSubstring("the last stage"));
  CHECK_THAT(text(core.update_done(at(1))), ContainsSubstring("awaits none"));
  CHECK_THAT(text(core.action_done(at(1), f(0))), ContainsSubstring("was not running"));
  CHECK_THAT(text(core.input_arrived(at(2), {1u << 20})), ContainsSubstring("out of range"));
  REQUIRE(core.begin(last(at(2))));
  CHECK_THAT(text(core.gradient_arrived(at(2), {0})), ContainsSubstring("takes no gradients"));
  REQUIRE(core.begin(evaluation(at(3))));
  CHECK_THAT(text(core.gradient_arrived(at(3), {0})), ContainsSubstring("evaluation"));
  REQUIRE(core.input_arrived(at(1), {0}));
  CHECK_THAT(text(core.action_done(at(1), f(1))), ContainsSubstring("F1 of step 1"));
  CHECK_THAT(text(core.input_arrived(at(1), {0})), ContainsSubstring("arrived twice"));
  CHECK(core.action_done(at(1), f(0)).has_value());
}

TEST_CASE("an announcement that early arrivals contradict is refused") {
  stage_core core;
  REQUIRE(core.input_arrived(at(1), {2}));
  CHECK_THAT(core.begin(middle(at(1), 2)).error().text, ContainsSubstring("the step has 2"));
  CHECK(core.waiting_for() == "no step is announced");
}

TEST_CASE("an announcement that is refused drops what arrived early for its step") {
  stage_core core;
  REQUIRE(core.input_arrived(at(1), {2}));
  REQUIRE_FALSE(core.begin(middle(at(1), 2)));
  // Two steps may be heard of before the first announcement, and that one does not count.
  CHECK(core.input_arrived(at(2), {0}));
  CHECK(core.input_arrived(at(3), {0}));
}

TEST_CASE("no micro-batch or chunk that a plan cannot have is kept for a later step") {
  stage_core core;
  CHECK(core.input_arrived(at(1), {max_microbatches - 1}, max_chunks - 1));
  CHECK(core.input_arrived(at(1), {max_microbatches}).error().code == errc::bad_frame);
  CHECK(core.input_arrived(at(1), {0}, max_chunks).error().code == errc::bad_frame);
}

TEST_CASE("no plan that breaks a rule can be proved, so none reaches a core") {
  auto steps = gpipe(1, 2).stages[0];
  steps.actions.pop_back();
  const auto prove = [&](std::uint32_t microbatches, std::uint32_t chunks, step_kind kind) {
    return proved_plan::prove(steps, microbatches, chunks, kind).error();
  };
  CHECK(prove(2, 1, step_kind::training) == error{errc::bad_config, "stage 0: B1 is missing"});
  CHECK(prove(2, 1, step_kind::evaluation).code == errc::bad_config);
  CHECK(prove(2, 0, step_kind::training).code == errc::bad_config);
  CHECK(prove(2, max_chunks + 1, step_kind::training).code == errc::bad_config);
  CHECK(prove(0, 1, step_kind::training).code == errc::bad_config);
}

TEST_CASE("steps that follow one plan share it") {
  stage_core core;
  const auto plan = gpipe_of(2);
  for (std::uint64_t step = 1; step <= 3; ++step)
    REQUIRE(core.begin({at(step), plan, false, false}));
  CHECK(plan.use_count() > 3);
  CHECK(plan->actions() == gpipe(1, 2).stages[0].actions);
}

TEST_CASE("the queue of steps is bounded") {
  stage_core core;
  for (std::uint64_t i = 1; i <= stage_core::max_queued_steps; ++i)
    REQUIRE(core.begin(middle(at(i))));
  CHECK_THAT(core.begin(middle(at(65))).error().text, ContainsSubstring("64 steps are queued"));
}

TEST_CASE("a newer epoch gives the older one up and waits only for what runs") {
  stage_core core;
  REQUIRE(core.begin(middle(at(7, 1))));
  REQUIRE(core.begin(middle(at(8, 1))));
  REQUIRE(core.input_arrived(at(7, 1), {0}));
  REQUIRE(core.input_arrived(at(9, 1), {0}));
  REQUIRE(core.input_arrived(at(5, 2), {0}));
  CHECK(core.begin(middle(at(5, 2))).value() == nothing);
  CHECK(core.input_arrived(at(7, 1), {1}).error().code == errc::stale);
  CHECK(core.waiting_for() == "step 7 of epoch 1: F0 runs");
  CHECK(core.action_done(at(7, 1), f(0)).value() == start(at(5, 2), f(0)));
  CHECK(core.action_done(at(7, 1), f(0)).error().code == errc::stale);
  CHECK(core.action_done(at(5, 2), f(0)).value() == send(at(5, 2), f(0)));
}

TEST_CASE("arrivals of a newer epoch are kept before its announcement, within bounds") {
  stage_core core;
  REQUIRE(core.begin(middle(at(7, 1))));
  REQUIRE(core.input_arrived(at(3, 2), {0}));
  REQUIRE(core.input_arrived(at(8, 1), {0}));
  REQUIRE(core.input_arrived(at(4, 2), {0}));
  CHECK(core.input_arrived(at(5, 2), {0}).error().code == errc::bad_frame);
  REQUIRE(core.input_arrived(at(3, 4), {0}));
  CHECK(core.input_arrived(at(3, 3), {0}).error().code == errc::stale);
  CHECK(core.input_arrived(at(9, 1), {0}).has_value());
  CHECK(core.begin(middle(at(3, 4), 1)).value() == start(at(3, 4), f(0)));
}

TEST_CASE("of what came early, that of the epoch under way and of the newest one is kept") {
  stage_core core;
  REQUIRE(core.begin(middle(at(7, 1), 1)));
  REQUIRE(core.begin(middle(at(8, 1), 1)));
  REQUIRE(core.input_arrived(at(9, 1), {0}));
  REQUIRE(core.input_arrived(at(3, 2), {0}));
  REQUIRE(core.input_arrived(at(3, 4), {0}));
  for (const std::uint64_t step : {7, 8}) {
    run_to_update(core, at(step, 1), 1);
    REQUIRE(core.update_done(at(step, 1)));
  }
  CHECK(core.begin(middle(at(9, 1), 1)).value() == start(at(9, 1), f(0)));
  REQUIRE(core.begin(middle(at(3, 2), 1)));
  CHECK(core.action_done(at(9, 1), f(0)).value() == nothing);  // the input came before epoch 4
}

TEST_CASE("any two steps may be heard of before the first announcement, and no third") {
  stage_core core;
  CHECK(core.input_arrived(at(0), {0}));
  CHECK(core.input_arrived(at(1), {0}));
  CHECK(core.input_arrived(at(2), {0}).error().code == errc::bad_frame);
  stage_core late;
  CHECK(late.input_arrived(at(std::numeric_limits<std::uint64_t>::max()), {0}));
  CHECK(late.input_arrived(at(1), {0}));
}

TEST_CASE("a forward of an evaluation waits for a credit of the next stage") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(evaluation(at(1))));
  REQUIRE(core.input_arrived(at(1), {0}));
  CHECK(core.input_arrived(at(1), {1}).value() == nothing);
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: F1 waits for a credit of the next stage");
  CHECK(core.credit_arrived(edge::input, at(1), {0}).value() == start(at(1), f(1)));
}

TEST_CASE("an output of a training step is held until the next stage has a credit for it") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(middle(at(1), 3)));
  for (std::uint32_t n = 0; n < 3; ++n) REQUIRE(core.input_arrived(at(1), {n}));
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)) + start(at(1), f(1)));
  CHECK(core.action_done(at(1), f(1)).value() == start(at(1), f(2)));
  CHECK(core.credit_arrived(edge::input, at(1), {0}).value() == send(at(1), f(1)));
  CHECK(core.action_done(at(1), f(2)).value() == nothing);
  CHECK(core.credit_arrived(edge::input, at(1), {1}).value() == send(at(1), f(2)));
}

TEST_CASE("an output is held also where the next step has been announced meanwhile") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(middle(at(1))));
  for (std::uint32_t n = 0; n < 2; ++n) REQUIRE(core.input_arrived(at(1), {n}));
  REQUIRE(core.action_done(at(1), f(0)));
  REQUIRE(core.begin(middle(at(2))));
  CHECK(core.action_done(at(1), f(1)).value() == nothing);
  CHECK(core.credit_arrived(edge::input, at(1), {0}).value() == send(at(1), f(1)));
}

TEST_CASE("an output that is ready before its action is done travels at once, and once") {
  stage_core core;
  REQUIRE(core.begin(middle(at(1))));
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.input_arrived(at(1), {1}));
  CHECK(core.output_ready(at(1), f(0)).value() == send(at(1), f(0)));
  CHECK(core.action_done(at(1), f(0)).value() == start(at(1), f(1)));
  REQUIRE(core.action_done(at(1), f(1)));
  REQUIRE(core.gradient_arrived(at(1), {0}));
  REQUIRE(core.gradient_arrived(at(1), {1}));
  CHECK(core.output_ready(at(1), b(0)).value() == send(at(1), b(0)));
  CHECK(error_of(core.output_ready(at(1), b(0)), errc::bad_frame).text ==
        "B0 of step 1 of epoch 1 has its output twice");
  CHECK(core.action_done(at(1), b(0)).value() == start(at(1), b(1)));
  CHECK_THAT(error_of(core.output_ready(at(1), b(0))).text,
             ContainsSubstring("but it was not running"));
  CHECK(core.action_done(at(1), b(1)).value() ==
        send(at(1), b(1)) + stage_effects{step_finished{at(1), step_kind::training}});
}

TEST_CASE("a gradient is held until the previous stage has a credit for it, and keeps its order") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(last(at(1), 3)));
  for (std::uint32_t i = 0; i < 3; ++i) {
    REQUIRE(core.input_arrived(at(1), {i}));
    REQUIRE(core.target_arrived(at(1), {i}));
  }
  for (std::uint32_t i = 0; i < 3; ++i) REQUIRE(core.action_done(at(1), f(i)));
  CHECK(core.action_done(at(1), b(0)).value() ==
        send(at(1), b(0)) + stage_effects{start_action{at(1), b(1)}});
  CHECK(core.action_done(at(1), b(1)).value() == stage_effects{start_action{at(1), b(2)}});
  CHECK(core.action_done(at(1), b(2)).value() ==
        stage_effects{step_finished{at(1), step_kind::training}});
  CHECK(core.credit_arrived(edge::gradient, at(1), {0}).value() == send(at(1), b(1)));
  // The update does not wait for the credits of its step.
  CHECK(core.update_done(at(1)).value() == nothing);
  CHECK(core.credit_arrived(edge::gradient, at(1), {1}).value() == send(at(1), b(2)));
  CHECK(core.credit_arrived(edge::gradient, at(1), {2}).value() == nothing);
}

TEST_CASE("an edge that waits does not hold up another") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(planned("F0 F1 B0 F2 B1 B2", 2, 3)));
  for (std::uint32_t n = 0; n < 3; ++n) REQUIRE(core.input_arrived(at(1), {n}));
  REQUIRE(core.action_done(at(1), f(0)));
  CHECK(core.action_done(at(1), f(1)).value() == nothing);
  CHECK(core.gradient_arrived(at(1), {0}).value() == start(at(1), b(0)));
  CHECK(core.action_done(at(1), b(0)).value() == send(at(1), b(0)) + start(at(1), f(2)));
}

TEST_CASE("what waits lets later actions of the plan go first, but no weight gradient") {
  stage_core core;
  REQUIRE(core.begin(planned("F0 F1 I0 W0 F2 I1 W1 I2 W2", 3, 3)));
  REQUIRE(core.input_arrived(at(1), {0}));
  CHECK(core.gradient_arrived(at(1), {0}).value() == nothing);
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)) + start(at(1), i(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: I0 runs");
  CHECK(core.action_done(at(1), i(0)).value() == send(at(1), i(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: F1 waits for its input");
  CHECK(core.input_arrived(at(1), {2}).value() == nothing);
  CHECK(core.input_arrived(at(1), {1}).value() == start(at(1), f(1)));
  // The cap has room for one forward more than the plan needs.
  CHECK(core.gradient_arrived(at(1), {1}).value() == nothing);
  CHECK(core.action_done(at(1), f(1)).value() ==
        send(at(1), f(1)) + stage_effects{start_action{at(1), w(0)}});
  CHECK(core.action_done(at(1), w(0)).value() == start(at(1), f(2)));
}

TEST_CASE("micro-batches stay in order within a kind, however they arrive") {
  stage_core core;
  REQUIRE(core.begin(planned("F0 F1 I0 I1 W0 W1", 2, 2)));
  CHECK(core.input_arrived(at(1), {1}).value() == nothing);
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.action_done(at(1), f(0)));
  CHECK(core.gradient_arrived(at(1), {1}).value() == nothing);
  CHECK(core.action_done(at(1), f(1)).value() == send(at(1), f(1)));
  CHECK(core.gradient_arrived(at(1), {0}).value() == start(at(1), i(0)));
  CHECK(core.action_done(at(1), i(0)).value() == send(at(1), i(0)) + start(at(1), i(1)));
}

TEST_CASE("a forward comes early only into memory that the plan never needs") {
  // 0F1 may not take the place that 1F0 needs before anything is given back.
  stage_core core;
  REQUIRE(core.begin(planned("0F0 1F0 1I0 1W0 0I0 0W0 0F1 1F1 1I1 1W1 0I1 0W1", 2, 2, 2)));
  REQUIRE(core.input_arrived(at(1), {0}, 0));
  REQUIRE(core.input_arrived(at(1), {1}, 0));
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: 1F0 waits for its input");
  // Where the plan would have given back in time neither: that time may be long.
  stage_core late;
  REQUIRE(late.begin(planned("F0 F1 I0 I1 W0 W1 F2 I2 W2", 2, 3)));
  for (std::uint32_t n = 0; n < 3; ++n) REQUIRE(late.input_arrived(at(1), {n}));
  REQUIRE(late.gradient_arrived(at(1), {0}));
  REQUIRE(late.action_done(at(1), f(0)));
  REQUIRE(late.action_done(at(1), f(1)));
  CHECK(late.action_done(at(1), i(0)).value() == send(at(1), i(0)));
  CHECK(late.waiting_for() == "step 1 of epoch 1: I1 waits for its gradient");
  // With room for one more it may.
  stage_core roomy;
  REQUIRE(roomy.begin(planned("0F0 1F0 1I0 1W0 0I0 0W0 0F1 1F1 1I1 1W1 0I1 0W1", 3, 2, 2)));
  REQUIRE(roomy.input_arrived(at(1), {0}, 0));
  REQUIRE(roomy.input_arrived(at(1), {1}, 0));
  CHECK(roomy.action_done(at(1), f(0)).value() == send(at(1), f(0)) + start(at(1), f(1)));
}

TEST_CASE("a whole backward does not pass a forward whose turn comes first") {
  stage_core core;
  REQUIRE(core.begin(planned("F0 F1 B0 B1", 2, 2)));
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.gradient_arrived(at(1), {0}));
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)));
  CHECK(core.waiting_for() == "step 1 of epoch 1: F1 waits for its input");
}

TEST_CASE("a stage that follows its plan strictly waits for the plan's next action") {
  stage_core core(default_credits, execution::planned);
  REQUIRE(core.begin(planned("F0 F1 I0 W0 I1 W1", 2, 2)));
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.gradient_arrived(at(1), {0}));
  CHECK(core.action_done(at(1), f(0)).value() == send(at(1), f(0)));
  CHECK(core.input_arrived(at(1), {1}).value() == start(at(1), f(1)));
  CHECK(core.action_done(at(1), f(1)).value() == send(at(1), f(1)) + start(at(1), i(0)));
}

TEST_CASE("each chunk has edges and ends of its own") {
  stage_core core(/*credits=*/1);
  run_step both = planned("0F0 1F0 1B0 0B0", 2, 1, 2);
  both.is_first = both.is_last = true;  // of a V
  REQUIRE(core.begin(both));
  CHECK(core.target_arrived(at(1), {0}, 0).error().text ==
        "step 1 of epoch 1: targets belong to the last stage");
  CHECK(core.gradient_arrived(at(1), {0}, 1).error().text ==
        "step 1 of epoch 1: the last stage takes no gradients");
  CHECK(core.input_arrived(at(1), {0}, 2).error().text ==
        "step 1 of epoch 1: the input is for chunk 2, the stage has 2");
  REQUIRE(core.target_arrived(at(1), {0}, 1));
  const action first{action_kind::forward, {0}, 0}, last{action_kind::forward, {0}, 1};
  CHECK(core.input_arrived(at(1), {0}, 0).value() == start(at(1), first));
  CHECK(core.action_done(at(1), first).value() == send(at(1), first));
  CHECK(core.input_arrived(at(1), {0}, 1).value() ==
        start(at(1), last) + stage_effects{grant_credit{at(1), edge::target, {0}, 1}});
  const action back{action_kind::backward, {0}, 1}, end{action_kind::backward, {0}, 0};
  CHECK(core.action_done(at(1), last).value() == stage_effects{start_action{at(1), back}});
  CHECK(core.credit_arrived(edge::gradient, at(1), {0}, 1).error().code == errc::bad_frame);
  CHECK(core.action_done(at(1), back).value() == send(at(1), back));
  CHECK(core.credit_arrived(edge::gradient, at(1), {0}, 1).value() == nothing);
  CHECK(core.credit_arrived(edge::input, at(1), {0}, 0).value() == nothing);
  CHECK(core.credit_arrived(edge::input, at(1), {0}, 2).error().text ==
        "step 1 of epoch 1: a credit for chunk 2, the stage has 2");
  CHECK(core.gradient_arrived(at(1), {0}, 0).value() == start(at(1), end));
  CHECK(core.action_done(at(1), end).value() ==
        stage_effects{step_finished{at(1), step_kind::training}});
}

TEST_CASE("a weight gradient has no output") {
  stage_core core;
  REQUIRE(core.begin(planned("F0 I0 W0", 1, 1)));
  REQUIRE(core.input_arrived(at(1), {0}));
  REQUIRE(core.action_done(at(1), f(0)));
  REQUIRE(core.gradient_arrived(at(1), {0}));
  CHECK(core.output_ready(at(1), i(0)).value() == send(at(1), i(0)));
  CHECK(core.action_done(at(1), i(0)).value() == stage_effects{start_action{at(1), w(0)}});
  CHECK(core.output_ready(at(1), w(0)).error().text == "W0 of step 1 of epoch 1 has no output");
  CHECK(core.action_done(at(1), w(0)).value() ==
        stage_effects{step_finished{at(1), step_kind::training}});
}

TEST_CASE("credits that nobody owes are refused by name") {
  stage_core core;
  REQUIRE(core.begin(middle(at(1, 2))));
  REQUIRE(core.input_arrived(at(1, 2), {0}));
  CHECK(core.credit_arrived(edge::input, at(1, 2), {1}).error() ==
        error{errc::bad_frame,
              "a credit for micro-batch 1 of step 1 of epoch 2, which is not under way"});
  CHECK(core.credit_arrived(edge::gradient, at(1, 2), {0}).error().code == errc::bad_frame);
  CHECK(core.credit_arrived(edge::target, at(1, 2), {0}).error().code == errc::bad_frame);
  CHECK(core.credit_arrived(edge::input, at(1, 1), {0}).error().code == errc::stale);
  CHECK(core.credit_arrived(edge::gradient, at(1, 1), {0}).error().code == errc::stale);
  REQUIRE(core.action_done(at(1, 2), f(0)));
  CHECK(core.credit_arrived(edge::input, at(1, 2), {0}).has_value());
  CHECK(core.credit_arrived(edge::input, at(1, 2), {0}).error().code == errc::bad_frame);
}

TEST_CASE("a newer epoch begins with all its credits and holds nothing back") {
  stage_core core(/*credits=*/1);
  REQUIRE(core.begin(middle(at(1, 1))));
  REQUIRE(core.input_arrived(at(1, 1), {0}));
  REQUIRE(core.action_done(at(1, 1), f(0)));
  REQUIRE(core.begin(middle(at(1, 2))));
  CHECK(core.input_arrived(at(1, 2), {0}).value() == start(at(1, 2), f(0)));
  CHECK(core.credit_arrived(edge::input, at(1, 1), {0}).error().code == errc::stale);
}
