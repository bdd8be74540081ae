// How versions come to their keepers: in pieces, and as what makes them of the ones before.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <random>

#include "engine/schedule/generators.hpp"
#include "tests/sim/runs/replay_runs.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests::replays;
using tests::replay_options;

namespace {

/// Three stages, whose versions come in pieces.
replay_options small_run() {
  return {.training = plan_step({"1f1b"}, 3, 2).value(),
          .steps = 3,
          .returns = true,
          .in_pieces = true};
}

}  // namespace

TEST_CASE("a living stage that is taken for lost amid a version in pieces costs no bits") {
  const auto of = after_doubts(250, 1, 0, in_pieces);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 200);
  CHECK(of.replays > of.back.fenced / 3);
}

TEST_CASE("each stage is taken for lost at each event of a run with versions in pieces") {
  const auto of =
      at_each_event(small_run(), [](auto& run, std::uint64_t event, std::uint32_t stage) {
        run.doubts = {{event, stage}};
      });
  CHECK(of.replays > of.back.fenced / 3);
  CHECK(of.back.refused > 0);  // what a stage sent that was replaced
}

TEST_CASE("runs with versions in pieces go on that lose stages, or doubt them, again and again") {
  const auto of = after_doubts(250, 2, 1, in_pieces);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.back.fenced / 10);
}

TEST_CASE("keepers that compute versions have the stages' bits, and get states where they differ") {
  const auto of = after_losses(300, 2, 0, computed_by_keepers);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 10);
  CHECK(of.back.computed > of.losses / 2);
  CHECK(of.back.other_bits > of.losses / 20);
}

TEST_CASE("stages with keepers that compute versions are taken for lost, and live") {
  const auto of = after_doubts(250, 2, 0, computed_by_keepers);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 200);
  CHECK(of.back.computed > of.back.fenced / 2);
}

TEST_CASE("a run whose keepers do not tell a stage in pieces from a replaced one is noticed") {
  auto options = small_run();
  const auto events = events_of(options, 1);
  options.names_senders = false;
  std::uint64_t noticed = 0;
  for (std::uint64_t event = 1; event <= events; ++event)
    for (std::uint32_t stage = 0; stage < 3; ++stage) {
      options.doubts = {{event, stage}};
      if (is_noticed(options, 1)) ++noticed;
    }
  CHECK(noticed > 0);
}

TEST_CASE("a run with keepers that compute versions, and look at no digest, is noticed") {
  std::uint64_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    auto options = computed_by_keepers(random);
    options.odd_of_8 = 4;
    options.losses[random() % events_of(options, seed) + 1] = some_place(options, random);
    options.checks_digests = false;
    if (is_noticed(options, seed)) ++noticed;
  }
  CHECK(noticed > 5);
}
