// All stages go back.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>

#include "engine/schedule/generators.hpp"
#include "tests/sim/runs/replay_runs.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests::replays;
using tests::replay_options;

TEST_CASE(
    "a run goes on that loses a host with all stages and keepers there, and to no checkpoint") {
  const auto of = after(400, on_hosts, [](auto& options, std::uint64_t events, auto& random) {
    options.host_losses[random() % events + 1] = some_host(options, random);
  });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.back.hosts > 320);
  CHECK(of.replays > of.back.hosts * 2 / 3);
  CHECK(of.of_several > of.back.hosts / 4);
}

TEST_CASE("a run goes on that loses hosts and stages one after the other") {
  const auto of = after(600, on_hosts, [](auto& options, std::uint64_t events, auto& random) {
    const auto first = random() % events + 1;
    options.host_losses[first] = some_host(options, random);
    options.host_losses[first + random() % (events / 2 + 1) + 1] = some_host(options, random);
    options.losses[random() % events + 1] =
        static_cast<std::uint32_t>(random() % options.hosts.size());
  });
  if (tests::is_replay()) return;
  CHECK(of.back.hosts > 720);
  CHECK(of.of_several > of.back.hosts / 4);
  CHECK(of.back.versions > 0);
  CHECK(of.back.checkpoints > 0);
}

TEST_CASE("a run that loses a stage goes on, and never has to go back to a checkpoint") {
  const auto of = after_losses(400, 1, 0, with_returns);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses * 2 / 3);
}

TEST_CASE(
    "a run that loses stages with their keepers goes back to its newest readable checkpoint") {
  const auto of = after(1000, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    const auto places = places_of(options);
    for (std::uint64_t pairs = random() % 2 + 1; pairs > 0; --pairs) {
      const auto event = random() % events + 1;
      const auto place = some_place(options, random);
      options.losses[event] = place;
      options.losses[event + random() % 30 + 1] = (place + 1) % places;
    }
  });
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 20);
  CHECK(of.back.versions > of.losses / 200);
  CHECK(of.back.checkpoints > of.losses / 20);
  CHECK(of.back.beginnings > of.losses / 20);
  CHECK(of.back.passed_over > of.losses / 50);
  CHECK(of.back.interrupted > of.losses / 10);
  CHECK(of.given_up < of.losses / 10);
}

TEST_CASE("runs that are lost again and again go on to the same numbers, or give up in vain") {
  const auto of = after_losses(300, 8, 8, with_returns);
  if (tests::is_replay()) return;
  CHECK(of.replays > of.losses / 10);
  CHECK(of.back.versions > 0);
  CHECK(of.back.checkpoints > 0);
}

TEST_CASE("another stage is lost at each event of a return to a checkpoint") {
  replay_options options{.training = plan_step({"1f1b"}, 3, 2).value(),
                         .steps = 5,
                         .evaluate_every = 2,
                         .ties = true,
                         .returns = true,
                         .checkpoint_every = 1,
                         .spoilt_of_8 = 2};
  tally of;
  for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 2U); ++seed) {
    const auto events = events_of(options, seed);
    const auto calm = calm_end_of(options, seed + 1, of);
    for (std::uint64_t event = events / 2 + 2; event <= events; ++event)
      for (std::uint32_t place = 0; place < 3; ++place) {
        options.losses = {{events / 2, 0}, {events / 2 + 1, 1}, {event, place}};
        expect_calm_end(options, seed, calm, of);
      }
    options.losses.clear();
  }
  tests::say_pace(of.simulated, of.begin);
  CHECK(of.back.checkpoints > of.losses / 4);
  CHECK(of.back.interrupted > 0);
  CHECK(of.given_up == 0);
}
