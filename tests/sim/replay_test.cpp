// A stage that is lost alone, at whatever moment: the others compute nothing again, and the run
// ends with the numbers of one that nothing happened to.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "tests/sim/runs/replay_runs.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests::replays;
using tests::replay_options;

TEST_CASE("a stage that is lost at any moment is replayed to the same numbers, and no other is") {
  const auto of = after_losses(500, 1, 0, anything);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages that are lost one after the other are replayed, or all go back") {
  const auto of = after_losses(250, 3, 8, anything);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 3);
  CHECK(of.in_evaluations > of.losses / 20);
}

TEST_CASE("a stage of one replica is replayed to the same numbers, and those of others are not") {
  const auto of = after_losses(500, 1, 0, with_replicas);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages of replicas that are lost one after the other are replayed, or all go back") {
  const auto of = after_losses(250, 3, 8, with_replicas);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 3);
}

TEST_CASE("a stage of replicas that share out the update is replayed to the same numbers") {
  const auto of = after_losses(500, 1, 0, with_shared_state);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages of such replicas that are lost one after the other are replayed, or go back") {
  const auto of = after_losses(250, 3, 8, with_shared_state);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 3);
}

TEST_CASE("each stage of two and three replicas is lost at each event of a run") {
  for (const auto& [stages, shares] :
       std::vector<std::pair<std::uint32_t, bool>>{{1, false}, {2, false}, {1, true}, {2, true}}) {
    replay_options options{.training = plan_step({"1f1b"}, stages, 2).value(),
                           .replicas = 4 - stages,
                           .shares_state = shares,
                           .steps = 3,
                           .ties = true};
    const auto of = at_each_event(options, [](auto& run, std::uint64_t event, std::uint32_t place) {
      run.losses = {{event, place}};
    });
    CHECK(of.replays > of.losses / 2);
  }
}

TEST_CASE("each stage of a small pipeline is lost at each event of a run") {
  for (const std::string schedule : {"1f1b", "zb-h1", "zb-v"}) {
    replay_options options{.training = plan_step({schedule}, 3, 4).value(),
                           .steps = 3,
                           .evaluate_every = 2,
                           .ties = true};
    const auto of = at_each_event(options, [](auto& run, std::uint64_t event, std::uint32_t stage) {
      run.losses = {{event, stage}};
    });
    CHECK(of.replays > of.losses / 2);
  }
}

// Several stages are lost at once, or one while others are replayed.

namespace {

/// Two or three stages, one right after the other.
void lose_some(replay_options& options, std::uint64_t events, std::mt19937_64& random) {
  const auto first = random() % events + 1;
  for (std::uint64_t i = random() % 2 + 2; i > 0; --i)
    options.losses[first + i] = some_place(options, random);
}

/// Most of the stages, one right after the other.
void lose_most(replay_options& options, std::uint64_t events, std::mt19937_64& random) {
  const auto first = random() % events + 1;
  for (std::uint32_t place = 0; place < places_of(options); ++place)
    if (random() % 4 != 0) options.losses[first + place] = place;
}

/// Each two stages are lost so many events apart, the first one at each event of a run, or at some.
tally after_each_pair(replay_options options, const std::vector<std::uint64_t>& apart) {
  tally of;
  const auto places = places_of(options);
  const auto losses_of = [&](std::uint64_t event, std::uint64_t gap, std::uint32_t pair) {
    return std::map<std::uint64_t, std::uint32_t>{{event, pair / places},
                                                  {event + gap, pair % places}};
  };
  for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 1U); ++seed) {
    options.losses.clear();
    const auto events = events_of(options, seed);
    const auto calm = calm_end_of(options, seed + 1, of);
    for (std::uint64_t event = 1; event <= events; event += tests::is_long() ? 1 : 17)
      for (const auto gap : apart)
        for (std::uint32_t pair = 0; pair < places * places; ++pair) {
          options.losses = losses_of(event, gap, pair);
          expect_calm_end(options, seed, calm, of);
        }
  }
  tests::say_pace(of.simulated, of.begin);
  return of;
}

}  // namespace

TEST_CASE(
    "stages that are lost together are replayed to the same numbers where versions are left") {
  const auto of = after(250, on_hosts, lose_some);
  if (tests::is_replay()) return;
  CHECK(of.of_several > 25);
}

TEST_CASE("each two stages are lost, together and one while the other is replayed") {
  const auto of = after_each_pair({.training = plan_step({"1f1b"}, 4, 2).value(),
                                   .steps = 3,
                                   .evaluate_every = 2,
                                   .ties = true,
                                   .returns = true},
                                  {1, 4, 12, 30});
  CHECK(of.of_several > of.losses / 10);
  CHECK(of.replays > of.losses / 3);
}

TEST_CASE("each two stages are lost whose versions are on another host, and are replayed") {
  const auto of = after_each_pair({.training = plan_step({"zb-h1"}, 3, 2).value(),
                                   .replicas = 2,
                                   .shares_state = true,
                                   .steps = 3,
                                   .returns = true,
                                   .hosts = {0, 0, 0, 1, 1, 1}},
                                  {1, 20});
  CHECK(of.of_several > of.losses / 5);
}

TEST_CASE("whichever stages are lost together are replayed where the trainer keeps versions too") {
  const auto of = after(200, on_the_trainers_host, lose_most);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.of_several > 50);
}

TEST_CASE("whichever stages are lost together are replayed from what another process computes") {
  const auto of = after(200, computed_by_what_outlives, lose_most);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.of_several > 50);
  CHECK(of.back.computed > 200);
}

TEST_CASE("each two stages are lost whose versions the trainer keeps too, and are replayed") {
  const auto of = after_each_pair({.training = plan_step({"1f1b"}, 3, 2).value(),
                                   .steps = 3,
                                   .evaluate_every = 2,
                                   .ties = true,
                                   .returns = true,
                                   .lends = true},
                                  {1, 20});
  // A third at most: of nine pairs three are of one stage twice. Half of the rest are at once.
  CHECK(of.of_several > of.losses / 8);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}
