#include "engine/step/replay_window.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace troupe;
using namespace troupe::engine;

namespace {

constexpr step_key step_at(std::uint64_t step) {
  return {{}, {step}};
}

/// Steps 11 to 17 among training steps, behind a version of step 10; their keys are ten more.
replay_window window_of(std::uint32_t accumulate) {
  replay_window window(accumulate);
  for (std::uint64_t number = 11; number <= 17; ++number)
    window.begun(number, step_at(number + 10));
  return window;
}

}  // namespace

TEST_CASE("the decision on a step says that the version before it is everywhere") {
  auto window = window_of(1);
  CHECK_FALSE(window.decided(10));  // which the version has
  CHECK(window.reaches(step_at(21)));
  CHECK(window.decided(11) == step_at(21));
  CHECK(window.decided(12) == step_at(22));
  CHECK_FALSE(window.reaches(step_at(21)));
  CHECK(window.reaches(step_at(22)));
  CHECK(window.decided(15) == step_at(25));
  CHECK(window.contains(step_at(25)));
  CHECK_FALSE(window.contains(step_at(24)));
  CHECK_FALSE(window.contains(step_at(28)));
}

TEST_CASE("with accumulated gradients steps are needed as far back as the last version") {
  auto window = window_of(3);  // versions of 10, 13, 16
  CHECK(window.decided(13) == step_at(21));
  CHECK(window.decided(14) == step_at(24));
  CHECK(window.decided(16) == step_at(24));
  CHECK(window.decided(17) == step_at(27));
}

TEST_CASE("an evaluation step is needed until all stages have done it") {
  auto window = window_of(1);
  for (const std::uint64_t step : {28, 29, 30}) window.begun_evaluation(step_at(step));
  CHECK(window.contains(step_at(29)));
  CHECK(window.done_before(step_at(28)).empty());
  CHECK(window.done_before(step_at(30)) == std::vector{step_at(28), step_at(29)});
  CHECK_FALSE(window.contains(step_at(29)));
  CHECK(window.contains(step_at(30)));
  // Training steps wait for a decision.
  CHECK(window.reaches(step_at(21)));
  window.begun(18, step_at(31));
  CHECK(window.done_before(step_at(31)) == std::vector{step_at(30)});
  CHECK(window.decided(18) == step_at(31));
}

TEST_CASE("a window in which nothing has begun reaches nowhere") {
  replay_window window;
  CHECK_FALSE(window.reaches(step_at(1)));
  CHECK_FALSE(window.decided(1));
}

TEST_CASE("the newest version is one that all stages have, of a step that was reported") {
  CHECK(newest_common({}, 9) == std::nullopt);
  CHECK(newest_common({{4, 5}}, 9) == 5);
  CHECK(newest_common({{4, 5}, {5, 6}, {5}}, 9) == 5);
  CHECK(newest_common({{4, 5}, {4, 5}, {4, 6}}, 9) == 4);
  CHECK(newest_common({{5, 4}, {4, 5}}, 9) == 5);
  CHECK(newest_common({{4, 5}, {6}}, 9) == std::nullopt);
  CHECK(newest_common({{4}, {}}, 9) == std::nullopt);
  CHECK(newest_common({{4, 5}, {4, 5}}, 5) == 5);
  CHECK(newest_common({{4, 5}, {4, 5}}, 4) == 4);
  CHECK(newest_common({{4, 5}, {4, 5}}, 3) == std::nullopt);
}

TEST_CASE("stages that are lost together start from the newest version of all that leaves no gap") {
  using versions = std::vector<std::vector<std::uint64_t>>;
  const auto from = [](const versions& kept, std::uint64_t begun,
                       const std::vector<std::uint64_t>& unanswered) {
    return version_for({kept, begun, unanswered});
  };
  CHECK(from({{4, 5}}, 7, {}) == 5);
  CHECK(from({{5, 6}}, 6, {}) == 5);  // the last step is always done again
  CHECK(from({{5, 6}}, 7, {6}) == 5);
  CHECK(from({{5, 6}}, 7, {7, 6, 8}) == 5);
  CHECK(from({{4, 5}, {5, 6}}, 7, {}) == 5);
  CHECK(from({{4, 5}, {5, 6}}, 7, {5}) == std::nullopt);
  CHECK(from({{4, 5}, {6}}, 8, {}) == std::nullopt);
  CHECK(from({{0}}, 1, {}) == 0);
  CHECK(from({{0}}, 0, {}) == std::nullopt);
  CHECK(from({{0}}, 3, {0}) == std::nullopt);
  CHECK(from({}, 3, {}) == std::nullopt);
}
