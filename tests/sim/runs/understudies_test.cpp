// Understudies take the places of lost stages, and are lost themselves: while they wait, when they
// are given a place, and after that.

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

replay_options with_understudies(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.understudies = random() % 3 + 1;
  return options;
}

replay_options with_understudies_on_hosts(std::mt19937_64& random) {
  auto options = on_hosts(random);
  options.understudies = random() % 3 + 1;
  return options;
}

}  // namespace

TEST_CASE("understudies of which some are lost take a stage's place, and it costs no checkpoint") {
  const auto of =
      after(400, with_understudies, [](auto& options, std::uint64_t events, auto& random) {
        const auto event = random() % events + 1;
        options.losses[event] = some_place(options, random);
        for (int i = 0; i < 2; ++i) lose_understudy(options, event, random);
      });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  if (tests::is_replay()) return;
  CHECK(of.back.understudies > of.losses / 3);
  CHECK(of.back.asked_in_vain > 0);
}

TEST_CASE("hosts and stages are lost with the understudies there, or with others") {
  const auto of =
      after(400, with_understudies_on_hosts, [](auto& options, std::uint64_t events, auto& random) {
        const auto event = random() % events + 1;
        if (random() % 2 == 0) options.host_losses[event] = some_host(options, random);
        for (std::uint64_t i = random() % 3 + 1; i > 0; --i)
          options.losses[event + i] = some_place(options, random);
        lose_understudy(options, event, random);
        lose_understudy(options, random() % events + 1, random);
      });
  if (tests::is_replay()) return;
  CHECK(of.back.hosts > 100);
  CHECK(of.of_several > 0);
  CHECK(of.back.understudies > of.losses / 5);
  CHECK(of.back.asked_in_vain > 0);
}

TEST_CASE("living stages and understudies are taken for lost, again and again") {
  const auto of =
      after(200, with_understudies, [](auto& options, std::uint64_t events, auto& random) {
        for (int i = 0; i < 2; ++i) {
          const auto event = random() % events + 1;
          options.doubts[event] = some_place(options, random);
          lose_understudy(options, event, random);
        }
      });
  if (tests::is_replay()) return;
  CHECK(of.back.fenced > 150);
  CHECK(of.back.understudies > of.back.fenced / 5);
}

TEST_CASE(
    "the only understudy is lost with each stage of a small pipeline at each event of a run") {
  const replay_options options{.training = plan_step({"1f1b"}, 3, 2).value(),
                               .steps = 3,
                               .evaluate_every = 2,
                               .ties = true,
                               .returns = true,
                               .understudies = 1};
  const auto of = at_each_event(options, [](auto& run, std::uint64_t event, std::uint32_t stage) {
    run.losses = {{event, stage}};
    run.understudy_losses = {{event + 1 + event % 20, 0}};
  });
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
  CHECK(of.replays > of.losses / 2);
  CHECK(of.back.understudies > 0);
  CHECK(of.back.asked_in_vain > 0);
}
