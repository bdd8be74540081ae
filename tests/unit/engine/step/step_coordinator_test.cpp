// One vote a stage, one decision a step.
#include "engine/step/step_coordinator_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/refusal.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

namespace {

step_vote vote(std::uint64_t step, std::uint32_t stage, const std::string& not_finite = "",
               bool of_loss = false) {
  return {{epoch_id{0}, step_id{step}}, {stage}, step, not_finite, of_loss};
}

step_vote squares(std::uint64_t step, std::uint32_t stage, const std::vector<double>& of) {
  auto made = vote(step, stage);
  made.squares = of;
  return made;
}

}  // namespace

TEST_CASE("a coordinator decides once all stages have voted, and names what is nearest the loss") {
  step_coordinator_core core({.stages = 3, .skip = true});
  CHECK_FALSE(core.hear(vote(1, 0, "far")).value());
  CHECK_FALSE(core.hear(vote(1, 2)).value());
  const auto decided = core.hear(vote(1, 1, "near")).value();
  REQUIRE(decided);
  CHECK(decided->step == step_key{epoch_id{0}, step_id{1}});
  CHECK(decided->left_out == "step 1 on stage-1: near");
  CHECK_FALSE(decided->ends_run);
  CHECK_FALSE(core.hear(vote(2, 2)).value());
  CHECK_FALSE(core.hear(vote(2, 1)).value());
  CHECK(core.hear(vote(2, 0)).value()->left_out.empty());
}

TEST_CASE("without a wish to skip, what is not finite ends the run") {
  step_coordinator_core core;
  const auto decided = core.hear(vote(1, 0, "the loss is NaN", true)).value();
  REQUIRE(decided);
  CHECK(decided->ends_run);
  CHECK_THAT(decided->left_out, ContainsSubstring("step 1 on stage-0: the loss is NaN; nothing was "
                                                  "applied (--on-nan skip"));
}

TEST_CASE("a repeated vote changes nothing, and a contradicting one is refused") {
  step_coordinator_core core({.stages = 2, .clip_norm = 1});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(core.hear(squares(1, 0, {1, nan})).value());
  CHECK_FALSE(core.hear(squares(1, 0, {1, nan})).value());
  check_refused(core.hear(squares(1, 0, {1})), errc::bad_frame, "contradicts its first one");
  check_refused(core.hear(vote(1, 0, "bad")), errc::bad_frame,
                "stage-0's vote on step 1 of epoch 0");
  CHECK(core.hear(squares(1, 1, {1})).value());
  CHECK_FALSE(core.hear(squares(2, 0, {9})).value());
  const auto first = core.hear(squares(2, 1, {16})).value();
  REQUIRE(first);
  CHECK(first->scale == 1.0 / 5);
  CHECK(core.hear(squares(2, 1, {16})).value() == first);
  CHECK(core.hear(squares(2, 0, {9})).value() == first);
  check_refused(core.hear(squares(2, 0, {16})), errc::bad_frame, "contradicts");
  check_refused(core.hear(squares(1, 1, {1})), errc::stale, "after its vote on step 2");
}

TEST_CASE("the norm has the same bits whichever stage has a parameter and which replica tells") {
  using numbers = std::vector<double>;
  const auto scale_of = [](const std::vector<numbers>& by_place) {
    step_coordinator_core core({.stages = 4, .clip_norm = 1, .replicas = 2});
    std::optional<step_decision> decided;
    for (std::uint32_t place = 0; place < 4; ++place)
      decided = core.hear(squares(1, place, by_place[place])).value();
    REQUIRE(decided);
    return decided->scale;
  };
  // Behind the largest each of the others would be lost.
  const numbers huge{1e17}, zero{0}, small(20, 7), zeros(20, 0);
  const auto both = [](numbers first, const numbers& then) {
    first.insert(first.end(), then.begin(), then.end());
    return first;
  };
  // Stages 0 and 1 of replica 0, then those of replica 1.
  const auto one = scale_of({huge, small, {}, {}});
  CHECK(one == 1 / std::sqrt(20 * 7 + 1e17));
  CHECK(one < 1 / std::sqrt(1e17));
  CHECK(scale_of({small, huge, {}, {}}) == one);
  CHECK(scale_of({both(huge, small), {}, {}, {}}) == one);
  CHECK(scale_of({both(small, huge), {}, {}, {}}) == one);
  CHECK(scale_of({huge, zeros, zero, small}) == one);
  CHECK(scale_of({zero, small, huge, zeros}) == one);
  CHECK(scale_of({both(huge, zeros), {}, both(zero, small), {}}) == one);
}

TEST_CASE("a coordinator refuses who is no stage, and keeps few steps open") {
  step_coordinator_core core({.stages = 2});
  check_refused(core.hear(vote(1, 2)), errc::bad_frame, "there are 2 stages");
  CHECK_FALSE(core.hear(vote(1, 0)).value());
  CHECK(core.hear(vote(1, 1)).value()->left_out.empty());  // what was refused counts for nothing
  for (std::uint64_t step = 2; step < 2 + step_coordinator_core::max_open; ++step)
    CHECK_FALSE(core.hear(vote(step, 0)).value());
  check_refused(core.hear(vote(1000, 0)), errc::bad_frame, "too many steps");
  CHECK(core.hear(vote(2, 1)).value());  // those that are open go on
}

TEST_CASE("squares are added up from the smallest to the largest, whatever comes first") {
  // Each 1 would be lost behind the largest.
  const std::vector<double> parts[] = {{1e16}, std::vector<double>(40, 1), {1, 1, 1, 1}};
  const auto scale_of = [&](bool backwards) {
    step_coordinator_core core({.stages = 3, .clip_norm = 1});
    std::optional<step_decision> last;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::uint32_t stage = backwards ? 2 - i : i;
      last = core.hear(squares(1, stage, parts[stage])).value();
      CHECK(last.has_value() == (i == 2));
    }
    return last->scale;
  };
  CHECK(scale_of(false) == scale_of(true));
  CHECK(scale_of(false) == 1 / std::sqrt(44 + 1e16));
  CHECK(scale_of(false) < 1 / std::sqrt(1e16));
}

TEST_CASE("the scale brings the global norm to its bound, and leaves what is below it") {
  const auto scale = [](double most, double of) {
    step_coordinator_core core({.clip_norm = most});
    return core.hear(squares(1, 0, {of})).value()->scale;
  };
  CHECK_THAT(scale(2, 32), WithinRel(2 / std::sqrt(32), 1e-15));
  CHECK(scale(2, 4) == 1);
  CHECK(scale(2, 0) == 1);
  CHECK(scale(0, 32) == 1);  // no bound
}

TEST_CASE("a norm that is not finite is no update, though each gradient is") {
  for (const bool skip : {false, true}) {
    step_coordinator_core core({.skip = skip, .clip_norm = 1, .scaler = loss_scaler{.scale = 8}});
    const double huge = std::numeric_limits<double>::infinity();
    const auto decided = core.hear(squares(3, 0, {1, huge})).value();
    REQUIRE(decided);
    CHECK_THAT(decided->left_out, ContainsSubstring("step 3: the norm of all gradients is inf"));
    CHECK(decided->ends_run != skip);
    CHECK(decided->loss_scale == 8);  // which did not make it so
  }
}

TEST_CASE("a scale that gradients overflowed with falls, and rises again") {
  step_coordinator_core core({.scaler = loss_scaler{.scale = 4, .interval = 2}});
  std::uint64_t step = 0;
  const auto scale_after = [&](const std::string& bad) {
    const auto decided = core.hear(vote(++step, 0, bad)).value();
    REQUIRE(decided);
    CHECK(decided->left_out.empty() == bad.empty());
    CHECK_FALSE(decided->ends_run);
    CHECK(decided->loss_scale == core.scaler()->scale);
    return decided->loss_scale;
  };
  CHECK(scale_after("") == 4);
  CHECK(scale_after("infinite") == 2);
  CHECK(scale_after("") == 2);
  CHECK(core.scaler()->applied == 1);
  CHECK(scale_after("") == 4);
  CHECK(scale_after("infinite") == 2);
  CHECK(scale_after("infinite") == 1);
  CHECK(core.scaler_after(1) == loss_scaler{.scale = 4, .interval = 2, .applied = 1});
  CHECK(core.scaler_after(4) == loss_scaler{.scale = 4, .interval = 2});
  CHECK(core.scaler_after(6)->scale == 1);
  CHECK_FALSE(core.scaler_after(7));
  const auto last = core.hear(vote(++step, 0, "infinite")).value();
  CHECK(last->ends_run);
  CHECK_THAT(last->left_out, ContainsSubstring("; the loss scale is 1 already; nothing was"));
  CHECK(step_coordinator_core({.scaler = loss_scaler{}})
            .hear(vote(1, 0, "the loss", true))
            .value()
            ->ends_run);
}

TEST_CASE("a loss that is not finite on one stage is no overflow, whatever others found") {
  step_coordinator_core core({.stages = 2, .scaler = loss_scaler{}});
  CHECK_FALSE(core.hear(vote(1, 0, "infinite")).value());
  const auto decided = core.hear(vote(1, 1, "the loss is NaN", true)).value();
  REQUIRE(decided);
  CHECK(decided->ends_run);
  CHECK(core.scaler() == loss_scaler{});
}

TEST_CASE("a coordinator knows the scales of so many steps") {
  step_coordinator_core core({.scaler = loss_scaler{}});
  constexpr auto most = step_coordinator_core::max_scalers;
  for (std::uint64_t step = 1; step <= most; ++step)
    static_cast<void>(core.hear(vote(step, 0)).value());
  CHECK(core.scaler_after(1));
  static_cast<void>(core.hear(vote(most + 1, 0)).value());
  CHECK_FALSE(core.scaler_after(1));
  CHECK(core.scaler_after(2));
}

TEST_CASE("a loss scale falls when a step overflows and rises after many that did not") {
  loss_scaler scaler{.scale = 8, .most = 16, .interval = 2};
  const auto after = [&scaler](bool finite) {
    scaler.hear(finite);
    return scaler.scale;
  };
  CHECK(after(true) == 8);
  CHECK(after(true) == 16);
  CHECK(after(true) == 16);
  CHECK(after(true) == 16);  // its most
  CHECK(after(false) == 8);
  CHECK(after(true) == 8);
  CHECK(after(false) == 4);
  CHECK(after(true) == 4);  // a skipped step resets the count
  CHECK(scaler.can_fall());
  for (int i = 0; i < 9; ++i) scaler.hear(false);
  CHECK(scaler.scale == 1);  // its least
  CHECK_FALSE(scaler.can_fall());
}

TEST_CASE("a coordinator counts the squares of one replica, and names the replica of a stage") {
  step_coordinator_core core({.stages = 4, .skip = true, .clip_norm = 1, .replicas = 2});
  CHECK_FALSE(core.hear(squares(1, 0, {9})).value());
  CHECK_FALSE(core.hear(squares(1, 1, {7})).value());
  CHECK_FALSE(core.hear(vote(1, 2)).value());
  CHECK(core.hear(vote(1, 3)).value().value().scale == 0.25);
  CHECK_FALSE(core.hear(vote(2, 0)).value());
  CHECK_FALSE(core.hear(vote(2, 1)).value());
  CHECK_FALSE(core.hear(vote(2, 2)).value());
  const auto decision = core.hear(vote(2, 3, "the gradient of x has a NaN")).value().value();
  CHECK(decision.left_out == "step 2 on stage-1 of replica 1: the gradient of x has a NaN");
}

TEST_CASE("a stage that does steps again may vote once more on those since the last version") {
  step_coordinator_core core({.stages = 1, .clip_norm = 1, .accumulate = 3});
  std::vector<step_decision> first;
  for (const std::uint64_t step : {1, 2, 3, 4})
    first.push_back(*core.hear(squares(step, 0, {4.0 * static_cast<double>(step)})).value());
  for (const std::uint64_t step : {2, 3, 4})
    CHECK(core.hear(squares(step, 0, {4.0 * static_cast<double>(step)})).value() ==
          first.at(step - 1));
  check_refused(core.hear(squares(3, 0, {1})), errc::bad_frame, "contradicts");
  check_refused(core.hear(squares(1, 0, {4})), errc::stale, "after its vote on step 4");
}

TEST_CASE("no step is decided before a stage that was lost has voted on it again, as before") {
  step_coordinator_core core({.stages = 3});
  for (std::uint32_t stage = 0; stage < 3; ++stage)
    static_cast<void>(core.hear(vote(1, stage)).value());
  CHECK_FALSE(core.hear(squares(2, 0, {4})).value());
  CHECK_FALSE(core.hear(vote(2, 1)).value());
  core.vote_again({0});
  core.vote_again({0});                  // another one is lost in its place
  CHECK(core.hear(vote(1, 0)).value());  // decided before: that stands
  CHECK_FALSE(core.hear(vote(2, 2)).value());
  CHECK_FALSE(core.hear(vote(2, 1)).value());
  check_refused(core.hear(squares(2, 0, {5})), errc::bad_frame, "contradicts");
  CHECK(core.hear(squares(2, 0, {4})).value());
  core.vote_again({1});  // nothing is undecided
  CHECK_FALSE(core.hear(vote(3, 0)).value());
  CHECK_FALSE(core.hear(vote(3, 2)).value());
  core.vote_again({2});
  CHECK_FALSE(core.hear(vote(3, 1)).value());
  CHECK(core.hear(vote(3, 2)).value());
}
