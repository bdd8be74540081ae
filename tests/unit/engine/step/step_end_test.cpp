// What a stage does between its last backward and the next step.
#include "engine/step/step_end_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "tests/refusal.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

namespace {

step_key key(std::uint64_t step) {
  return {epoch_id{0}, step_id{step}};
}

/// The one effect, which must be such a one.
template <class Effect>
Effect only(const result<step_end_effects>& effects) {
  INFO((effects ? "" : effects.error().text));
  REQUIRE(effects);
  REQUIRE(effects->size() == 1);
  REQUIRE(std::holds_alternative<Effect>(effects->front()));
  return std::get<Effect>(effects->front());
}

step_decision apply(std::uint64_t step, double scale = 1) {
  return {.step = key(step), .scale = scale};
}
step_decision leave_out(std::uint64_t step) {
  return {.step = key(step), .left_out = "why"};
}

/// The terms on which a step's gradients are summed, once its actions are done.
gradient_terms terms_of(step_end_core& core, std::uint64_t step, bool dry_run = false) {
  REQUIRE(core.begin(key(step), step, dry_run));
  return only<sum_own>(core.actions_done(key(step))).complete.value();
}

}  // namespace

TEST_CASE("a stage that nothing couples to others applies its steps without a vote") {
  step_end_core core;
  CHECK(terms_of(core, 1) == gradient_terms{gradient_use::update, false});
  CHECK(only<apply_step>(core.gradients_ready(key(1), {})) == apply_step{key(1), 1});
  CHECK(only<finish_step>(core.ended(key(1))) == finish_step{key(1)});
  terms_of(core, 2);
  check_refused(core.gradients_ready(key(2), {.not_finite = "the gradient of x has a NaN"}),
                errc::handler_failed,
                "step 2: the gradient of x has a NaN; it was not applied (--on-nan skip");
  REQUIRE(core.begin(key(3), 3));
  core.give_up();
  check_refused(core.ended(key(2)), errc::stale, "step 2 of epoch 0, which is no training step");
}

TEST_CASE("a stage whose versions are kept votes on each step, and knows when none is half made") {
  step_end_core core({.accumulate = 2, .always_votes = true});
  CHECK(core.is_between_updates());
  CHECK(terms_of(core, 1) == gradient_terms{gradient_use::add, false});
  CHECK(only<cast_vote>(core.gradients_ready(key(1), {})).vote.not_finite.empty());
  REQUIRE(core.decided(apply(1)));
  CHECK_FALSE(core.is_between_updates());
  CHECK(terms_of(core, 2) == gradient_terms{gradient_use::update, false});
  only<cast_vote>(core.gradients_ready(key(2), {}));
  CHECK(only<apply_step>(core.decided(apply(2))) == apply_step{key(2), 1});
  only<finish_step>(core.ended(key(2)));
  CHECK(core.is_between_updates());
  terms_of(core, 3);
  check_refused(core.gradients_ready(key(3), {.not_finite = "the gradient of x has a NaN"}),
                errc::handler_failed, "it was not applied");
}

TEST_CASE("a loss that is not finite is an error at once, or part of the vote") {
  step_end_core alone;
  REQUIRE(alone.begin(key(1), 7));
  CHECK_THAT(error_of(alone.loss_not_finite(key(1), "the loss is NaN")).text,
             ContainsSubstring("step 7: the loss is NaN; it was not applied"));

  step_end_core coupled({.stage = {3}, .may_leave_out = true});
  REQUIRE(coupled.begin(key(1), 7));
  REQUIRE(coupled.loss_not_finite(key(1), "the first"));
  REQUIRE(coupled.loss_not_finite(key(1), "the second"));
  only<sum_own>(coupled.actions_done(key(1)));
  const auto vote = only<cast_vote>(coupled.gradients_ready(key(1), {.not_finite = "x"})).vote;
  CHECK(vote.step == key(1));
  CHECK(vote.stage == stage_id{3});
  CHECK(vote.number == 7);
  CHECK(vote.not_finite == "the first");
  CHECK(vote.of_loss);
}

TEST_CASE("a loss may be known no sooner than the complete gradients are, and not later") {
  step_end_core alone;
  terms_of(alone, 1);
  CHECK(error_of(alone.loss_not_finite(key(1), "the loss is NaN")).code == errc::handler_failed);
  step_end_core coupled({.may_leave_out = true});
  terms_of(coupled, 1);
  REQUIRE(coupled.loss_not_finite(key(1), "the loss is NaN"));
  const auto vote = only<cast_vote>(coupled.gradients_ready(key(1), {.not_finite = "x"})).vote;
  CHECK(vote.of_loss);
  CHECK(vote.not_finite == "the loss is NaN");
  CHECK(error_of(coupled.loss_not_finite(key(1), "the loss is NaN")).code == errc::bad_frame);
}

TEST_CASE("a stage follows the decision: applies with its scale, or takes the step back") {
  step_end_core core({.may_leave_out = true, .clips_norm = true});
  CHECK(terms_of(core, 1) == gradient_terms{gradient_use::update, true});
  const auto vote = only<cast_vote>(core.gradients_ready(key(1), {.squares = {1, 2}})).vote;
  CHECK(vote.not_finite.empty());
  CHECK(vote.squares == std::vector<double>{1, 2});
  CHECK(only<apply_step>(core.decided(apply(1, 0.5))) == apply_step{key(1), 0.5});
  only<finish_step>(core.ended(key(1)));

  terms_of(core, 2);
  only<cast_vote>(core.gradients_ready(key(2), {}));
  CHECK(only<undo_step>(core.decided(leave_out(2))) == undo_step{key(2), true});
  CHECK(only<finish_step>(core.ended(key(2))).left_out == "why");

  terms_of(core, 3);
  only<cast_vote>(core.gradients_ready(key(3), {}));
  CHECK(only<end_run>(core.decided({.step = key(3), .left_out = "it is over", .ends_run = true}))
            .why == "it is over");
}

TEST_CASE("a repeated decision changes nothing, and one that cannot be is refused") {
  step_end_core core({.may_leave_out = true});
  terms_of(core, 1);
  check_refused(core.decided(apply(1)), errc::bad_frame, "is not due");
  only<cast_vote>(core.gradients_ready(key(1), {}));
  only<apply_step>(core.decided(apply(1)));
  CHECK(core.decided(apply(1))->empty());
  check_refused(core.decided(leave_out(1)), errc::bad_frame, "contradicts the first one");
  only<finish_step>(core.ended(key(1)));
  CHECK(core.decided(apply(1))->empty());
  check_refused(core.decided(apply(2)), errc::stale, "step 2");

  terms_of(core, 2);
  only<cast_vote>(core.gradients_ready(key(2), {.not_finite = "x"}));
  check_refused(core.decided(apply(2)), errc::bad_frame, "applies what is not finite");
  only<undo_step>(core.decided(leave_out(2)));
  CHECK(core.decided(apply(1))->empty());  // late
}

TEST_CASE("where stages are coupled by the norm alone, a step votes when its update is due") {
  step_end_core core({.clips_norm = true, .accumulate = 2});
  CHECK(terms_of(core, 1) == gradient_terms{gradient_use::add, false});
  const auto effects = core.gradients_ready(key(1), {}).value();
  REQUIRE(effects.size() == 2);
  CHECK(std::get<apply_step>(effects.at(0)) == apply_step{key(1), std::nullopt});
  CHECK(std::get<finish_step>(effects.at(1)) == finish_step{key(1)});
  CHECK(terms_of(core, 2) == gradient_terms{gradient_use::update, true});
  only<cast_vote>(core.gradients_ready(key(2), {.squares = {4}}));
  CHECK(only<apply_step>(core.decided(apply(2, 0.25))).scale == 0.25);
  only<finish_step>(core.ended(key(2)));
  terms_of(core, 3);
  check_refused(core.gradients_ready(key(3), {.not_finite = "x"}), errc::handler_failed, "step 3");
}

TEST_CASE("an update with a step that is left out is left out whole, and the next one is not") {
  for (std::uint64_t which = 1; which <= 3; ++which) {
    step_end_core core({.may_leave_out = true, .accumulate = 3});
    const auto use = [&](std::uint64_t step) {
      const auto terms = terms_of(core, step);
      only<cast_vote>(core.gradients_ready(key(step), {}));
      if (step == which) {
        only<undo_step>(core.decided(leave_out(step)));
        only<finish_step>(core.ended(key(step)));
      } else if (const auto effects = core.decided(apply(step)).value(); effects.size() == 1) {
        CHECK(terms.use == gradient_use::update);
        only<finish_step>(core.ended(key(step)));
      }
      return terms.use;
    };
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const auto due = step == 3 ? gradient_use::update : gradient_use::add;
      CHECK(use(step) == (step > which ? gradient_use::check : due));
    }
    CHECK(use(4) == gradient_use::add);
    CHECK(use(5) == gradient_use::add);
    CHECK(use(6) == gradient_use::update);
  }
}

TEST_CASE("a dry run keeps its gradients, changes nothing and counts for no update") {
  step_end_core core({.may_leave_out = true, .clips_norm = true, .accumulate = 2});
  terms_of(core, 1);
  only<cast_vote>(core.gradients_ready(key(1), {}));
  REQUIRE(core.decided(apply(1)));
  CHECK(terms_of(core, 2, true) == gradient_terms{gradient_use::check, false});
  const auto effects = core.gradients_ready(key(2), {.not_finite = "x"}).value();
  REQUIRE(effects.size() == 2);
  CHECK(std::get<keep_gradients>(effects.at(0)) == keep_gradients{key(2)});
  CHECK(std::get<undo_step>(effects.at(1)) == undo_step{key(2), false});
  CHECK(only<finish_step>(core.ended(key(2))) == finish_step{key(2)});
  CHECK(terms_of(core, 3).use == gradient_use::update);
}

TEST_CASE("gradients are complete once those of all tied weights came, whichever comes first") {
  for (const bool own_first : {true, false}) {
    step_end_core core({.ties = {"head", "tail"}});
    REQUIRE(core.begin(key(1), 1));
    CHECK(core.tie_arrived(key(1), "tail")->empty());
    CHECK_FALSE(only<sum_own>(core.actions_done(key(1))).complete);
    if (!own_first) CHECK(core.tie_arrived(key(1), "head")->empty());
    auto effects = core.own_summed(key(1)).value();
    CHECK(std::get<share_ties>(effects.at(0)) == share_ties{key(1)});
    if (own_first) {
      CHECK(effects.size() == 1);
      effects = core.tie_arrived(key(1), "head").value();
    }
    CHECK(std::get<sum_with_ties>(effects.back()).terms == gradient_terms{});
    only<apply_step>(core.gradients_ready(key(1), {}));
    only<finish_step>(core.ended(key(1)));
  }
}

TEST_CASE("a tied gradient of no tied weight, or that came before, is refused by name") {
  step_end_core core({.ties = {"head"}});
  REQUIRE(core.begin(key(7), 1));
  check_refused(core.tie_arrived(key(6), "head"), errc::stale, "step 6 of epoch 0, which is no");
  check_refused(core.tie_arrived(key(7), "own"), errc::bad_frame,
                "'own' of step 7 of epoch 0 came, and no other stage");
  CHECK(core.tie_arrived(key(7), "head")->empty());
  check_refused(core.tie_arrived(key(7), "head"), errc::bad_frame, "came twice");
  only<sum_own>(core.actions_done(key(7)));
  CHECK(core.own_summed(key(7))->size() == 2);
  check_refused(core.tie_arrived(key(7), "head"), errc::bad_frame, "came twice");
}

TEST_CASE("a tied gradient is kept for a step that the stage is not told of yet, and for one") {
  step_end_core core({.ties = {"head", "tail"}});
  CHECK(core.tie_arrived(key(2), "head")->empty());
  check_refused(core.tie_arrived(key(2), "head"), errc::bad_frame, "came twice");
  check_refused(core.tie_arrived(key(3), "head"), errc::bad_frame, "an earlier step has not begun");
  check_refused(core.tie_arrived(key(2), "own"), errc::bad_frame, "no other stage has that");
  REQUIRE(core.begin(key(2), 1));
  check_refused(core.tie_arrived(key(2), "head"), errc::bad_frame, "came twice");
  CHECK(core.tie_arrived(key(3), "tail")->empty());
  only<sum_own>(core.actions_done(key(2)));
  only<share_ties>(core.own_summed(key(2)));
  CHECK(only<sum_with_ties>(core.tie_arrived(key(2), "tail")) == sum_with_ties{key(2), {}});
  only<apply_step>(core.gradients_ready(key(2), {}));
  only<finish_step>(core.ended(key(2)));
  // What never begins, or was given up, is forgotten.
  REQUIRE(core.begin(key(4), 2));
  CHECK(core.tie_arrived(key(5), "tail")->empty());
  core.give_up();
  check_refused(core.tie_arrived(key(4), "head"), errc::stale, "no training step under way");
  CHECK(core.tie_arrived(key(5), "tail")->empty());
}

TEST_CASE("steps end one at a time, in their order, and events that are not due are refused") {
  step_end_core core;
  REQUIRE(core.begin(key(1), 1));
  CHECK(core.begin(key(1), 1).error().code == errc::stale);
  REQUIRE(core.begin(key(2), 2));
  check_refused(core.actions_done(key(2)), errc::bad_frame, "the end of step 2 of epoch 0 is not");
  check_refused(core.gradients_ready(key(1), {}), errc::bad_frame, "is not due");
  check_refused(core.ended(key(1)), errc::bad_frame, "is not due");
  only<sum_own>(core.actions_done(key(1)));
  check_refused(core.actions_done(key(1)), errc::bad_frame, "is not due");
  check_refused(core.own_summed(key(1)), errc::bad_frame, "is not due");
  only<apply_step>(core.gradients_ready(key(1), {}));
  only<finish_step>(core.ended(key(1)));
  only<sum_own>(core.actions_done(key(2)));
}

TEST_CASE("own gradients are summed with those of replicas first, and then with those of ties") {
  step_end_core core({.ties = {"w"}, .clips_norm = true, .reduces = true, .tells_squares = false});
  REQUIRE(core.begin(key(1), 1));
  CHECK(only<sum_own>(core.actions_done(key(1))).complete == std::nullopt);
  CHECK(only<sum_replicas>(core.own_summed(key(1))) == sum_replicas{key(1)});
  check_refused(core.own_summed(key(1)), errc::bad_frame, "is not due");
  CHECK(core.tie_arrived(key(1), "w").value().empty());
  const auto effects = core.reduced(key(1)).value();
  REQUIRE(effects.size() == 2);
  CHECK(std::holds_alternative<share_ties>(effects[0]));
  CHECK(std::holds_alternative<sum_with_ties>(effects[1]));
  check_refused(core.reduced(key(1)), errc::bad_frame, "is not due");
  // Another replica's squares are these.
  const auto vote = only<cast_vote>(core.gradients_ready(key(1), {.squares = {1, 2}})).vote;
  CHECK(vote.squares.empty());
}

TEST_CASE("replicas without ties and votes apply what they have summed") {
  step_end_core core({.reduces = true});
  REQUIRE(core.begin(key(1), 1));
  CHECK(only<sum_own>(core.actions_done(key(1))).complete == std::nullopt);
  CHECK(only<sum_replicas>(core.own_summed(key(1))) == sum_replicas{key(1)});
  CHECK(only<sum_with_ties>(core.reduced(key(1))) == sum_with_ties{key(1), {}});
  CHECK(only<apply_step>(core.gradients_ready(key(1), {})) == apply_step{key(1), 1});
}

TEST_CASE("a tied gradient that comes once more from a new neighbour is known, once") {
  step_end_core core({.ties = {"head", "own"}, .logs = true});
  const auto do_step = [&](std::uint64_t step) {
    REQUIRE(core.begin(key(step), step));
    for (const std::string parameter : {"head", "own"})
      CHECK(core.tie_arrived(key(step), parameter)->empty());
    static_cast<void>(core.actions_done(key(step)));
    static_cast<void>(core.own_summed(key(step)));
    only<apply_step>(core.gradients_ready(key(step), {}));
    only<finish_step>(core.ended(key(step)));
  };
  for (const std::uint64_t step : {1, 2, 3}) do_step(step);
  REQUIRE(core.begin(key(4), 4));
  CHECK(core.tie_arrived(key(4), "head")->empty());
  CHECK(core.tie_arrived(key(5), "head")->empty());
  core.forget_before(key(2));
  core.start_over({"head"}, key(1));
  CHECK_FALSE(core.take_repeat(key(1), "head"));  // forgotten
  CHECK(core.take_repeat(key(2), "head"));
  CHECK_FALSE(core.take_repeat(key(2), "head"));
  CHECK_FALSE(core.take_repeat(key(3), "own"));  // shared with another stage
  CHECK(core.take_repeat(key(4), "head"));       // here, and not used yet
  CHECK(core.take_repeat(key(5), "head"));       // here, and not even begun
  core.start_over({"head"}, key(3));
  CHECK_FALSE(core.take_repeat(key(2), "head"));
  CHECK(core.take_repeat(key(3), "head"));
  // What is not here comes for the first time.
  core.start_over({"own"}, key(2));
  CHECK(core.take_repeat(key(2), "own"));
  CHECK_FALSE(core.take_repeat(key(4), "own"));
  CHECK_FALSE(core.take_repeat(key(5), "own"));
  // The next replacement does fewer steps again, and the one before sends nothing more.
  core.start_over({"head"}, key(2));
  core.start_over({"head"}, key(4));
  CHECK_FALSE(core.take_repeat(key(2), "head"));
  CHECK(core.take_repeat(key(4), "head"));
  core.start_over({"head"}, key(5));
  CHECK_FALSE(core.take_repeat(key(4), "head"));
  CHECK(core.take_repeat(key(5), "head"));
}

TEST_CASE("where steps are not logged no tied gradient of one that is over comes once more") {
  step_end_core core({.ties = {"head"}});
  REQUIRE(core.begin(key(1), 1));
  CHECK(core.tie_arrived(key(1), "head")->empty());
  static_cast<void>(core.actions_done(key(1)));
  static_cast<void>(core.own_summed(key(1)));
  only<apply_step>(core.gradients_ready(key(1), {}));
  only<finish_step>(core.ended(key(1)));
  core.start_over({"head"}, key(1));
  CHECK_FALSE(core.take_repeat(key(1), "head"));
}

TEST_CASE("a step that is not complete may need what other stages send") {
  step_end_core core({.ties = {"head"}, .always_votes = true});
  CHECK_FALSE(core.waits_before(key(9)));
  REQUIRE(core.begin(key(1), 1));
  CHECK(core.waits_before(key(2)));
  CHECK_FALSE(core.waits_before(key(1)));
  static_cast<void>(core.actions_done(key(1)));
  static_cast<void>(core.own_summed(key(1)));
  CHECK(core.waits_before(key(2)));
  static_cast<void>(core.tie_arrived(key(1), "head"));
  CHECK_FALSE(core.waits_before(key(2)));
  REQUIRE(core.begin(key(2), 2));
  CHECK_FALSE(core.waits_before(key(2)));
  CHECK(core.waits_before(key(3)));  // though the first step needs nothing any more
}
