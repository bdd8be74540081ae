// The process of a stage reads the data, and is lost.

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <random>
#include <string>

#include "engine/schedule/generators.hpp"
#include "tests/sim/runs/replay_runs.hpp"

using namespace troupe;
using namespace troupe::engine;
using namespace troupe::tests::replays;
using tests::replay_options;

TEST_CASE("a stage that is lost with the data is replayed to the same numbers, and no other is") {
  const auto of = after(400, with_data, [](auto& options, std::uint64_t events, auto& random) {
    options.losses[random() % events + 1] = *options.data_at;
  });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.with_data > of.losses / 2);
  CHECK(of.in_evaluations > 0);
}

TEST_CASE("the data are lost again, or another stage is, while batches are fed again") {
  const auto of = after(500, with_data, [](auto& options, std::uint64_t events, auto& random) {
    auto event = random() % events + 1;
    options.losses[event] = *options.data_at;
    for (int i = 0; i < 2; ++i) {
      event += random() % 40 + 1;
      options.losses[event] = random() % 2 == 0 ? *options.data_at : some_place(options, random);
    }
  });
  if (tests::is_replay()) return;
  CHECK(of.with_data > of.losses / 20);
  CHECK(of.of_several > 0);
  CHECK(of.back.versions + of.back.checkpoints + of.back.beginnings > 0);
}

TEST_CASE("the data are lost at each event of a run, whichever of three stages has them") {
  for (const std::string schedule : {"1f1b", "zb-v"})
    for (std::uint32_t place = 0; place < 3; ++place) {
      replay_options options{.training = plan_step({schedule}, 3, 4).value(),
                             .steps = 3,
                             .evaluate_every = 2,
                             .ties = true,
                             .data_at = place};
      tally of;
      for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 1U); ++seed) {
        options.losses.clear();
        const auto events = events_of(options, seed);
        const auto calm = calm_end_of(options, seed + 1, of);
        for (std::uint64_t event = 1; event <= events; ++event) {
          options.losses = {{event, place}};
          expect_calm_end(options, seed, calm, of);
        }
      }
      tests::say_pace(of.simulated, of.begin);
      CHECK(of.with_data > of.losses / 2);
    }
}

TEST_CASE("a run goes on that loses the host that has the data, or takes its reader for lost") {
  const auto with_hosts = [](std::mt19937_64& random) {
    auto options = on_hosts(random);
    options.data_at = static_cast<std::uint32_t>(random() % options.hosts.size());
    return options;
  };
  const auto of = after(200, with_hosts, [](auto& options, std::uint64_t events, auto& random) {
    const auto event = random() % events + 1;
    if (random() % 2 == 0)
      options.host_losses[event] = options.hosts[*options.data_at];
    else
      options.doubts[event] = *options.data_at;
  });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.with_data > 40);
}
