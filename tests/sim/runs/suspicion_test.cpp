// Processes that are taken for lost and live, and ways between two that are cut.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "engine/schedule/generators.hpp"
#include "tests/sim/runs/replay_runs.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests::replays;
using tests::replay_options;

namespace {

/// Between two stages, or a stage and the trainer, one way or both, for as long as silence is
/// noticed or not.
replay_options::cut some_cut(const replay_options& options, std::mt19937_64& random) {
  const std::uint64_t places = places_of(options);
  replay_options::cut made{.from = some_place(options, random)};
  made.to = static_cast<std::uint32_t>((made.from + 1 + random() % places) % (places + 1));
  if (random() % 2 == 0) std::swap(made.from, made.to);
  made.both_ways = random() % 2 == 0;
  made.lasts = static_cast<std::uint32_t>(random() % 3000 + 1);
  return made;
}

}  // namespace

TEST_CASE("a living stage that is taken for lost is replaced to the same numbers") {
  const auto of = after_doubts(250, 1, 0, with_returns);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 225);
  CHECK(of.replays > of.back.fenced / 2);
}

TEST_CASE("runs go on whose stages are lost, or are taken for lost and live, again and again") {
  const auto of = after_doubts(250, 3, 1, with_returns);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 450);
  CHECK(of.replays > of.back.fenced / 5);
}

TEST_CASE("living stages that are taken for lost cost no checkpoint where the trainer keeps too") {
  const auto of = after_doubts(300, 3, 0, on_the_trainers_host);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 450);
}

TEST_CASE("each stage of a small pipeline is taken for lost at each event of a run, and lives") {
  const replay_options options{.training = plan_step({"1f1b"}, 3, 2).value(),
                               .steps = 3,
                               .evaluate_every = 2,
                               .ties = true,
                               .returns = true};
  const auto of = at_each_event(options, [](auto& run, std::uint64_t event, std::uint32_t stage) {
    run.doubts = {{event, stage}};
  });
  CHECK(of.replays > of.back.fenced / 2);
}

TEST_CASE("a way that is cut for a while, to one side or both, costs no bits and no checkpoint") {
  const auto of = after(250, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    options.cuts[random() % events + 1] = some_cut(options, random);
  });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 25);
  CHECK(of.replays > 25);
}

TEST_CASE("runs go on that lose a stage while ways are cut") {
  const auto of = after(150, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    for (int i = 0; i < 2; ++i) options.cuts[random() % events + 1] = some_cut(options, random);
    options.losses[random() % events + 1] = some_place(options, random);
  });
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 25);
  CHECK(of.replays > of.losses / 4);
}

TEST_CASE("a run whose stages still listen to one that was replaced is noticed") {
  std::uint64_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    auto options = anything(random);
    options.returns = true;
    options.doubts[random() % events_of(options, seed) + 1] = some_place(options, random);
    options.ignores_departed = false;
    if (is_noticed(options, seed)) ++noticed;
  }
  CHECK(noticed > 5);
}
