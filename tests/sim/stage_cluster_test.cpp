#include "tests/sim/stage_cluster.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/sim/runs/any_plan.hpp"
#include "tests/sim/seeds.hpp"

using namespace troupe;
using namespace troupe::engine;
using tests::cluster_options;
using tests::stage_cluster;

namespace {

/// Any plan, any credits, any network; now and then a repeated message or a restart.
cluster_options anything(std::mt19937_64& random) {
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  const std::uint32_t stages = below(6) + 1;
  const std::uint32_t microbatches = below(9) + 1;
  cluster_options options;
  options.training = tests::any_plan(stages, microbatches, random);
  options.credits = below(2) ? 1 : below(4) + 1;
  options.how = below(4) ? execution::ready : execution::planned;
  options.jitter = below(2) ? 200 : 5;
  options.forward = below(3) * 20;
  options.input_gradient = below(3) * 20;
  options.weight_gradient = below(3) * 20;
  options.action_jitter = below(3) ? options.jitter : 0;
  options.pieces = below(3) * 3;
  options.steps = below(3) ? 3 : 6;
  options.evaluations_of_3 = below(4) == 0 ? 3 : 1;
  options.repeats = below(2) == 0;
  options.restarts = below(3) == 0;
  return options;
}

std::uint64_t duration(const plan& steps, std::uint32_t credits, std::uint32_t latency,
                       std::uint32_t action_jitter) {
  std::uint64_t total = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    stage_cluster cluster({.training = steps,
                           .credits = credits,
                           .steps = 3,
                           .evaluations_of_3 = 0,
                           .least_delay = latency,
                           .jitter = 1,
                           .forward = 1000,
                           .input_gradient = 1000,
                           .weight_gradient = 1000,
                           .action_jitter = action_jitter},
                          seed);
    const std::string fault = cluster.run();
    if (!fault.empty()) FAIL(fault);
    total += cluster.finished_at();
  }
  return total;
}

}  // namespace

TEST_CASE("every action runs once and micro-batches in order, whatever plan, network and credits") {
  tests::for_each_seed(1000, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const cluster_options options = anything(random);
    if (const auto sound = check(options.training); !sound)
      return "a random plan is unsound: " + sound.error().text;
    std::string fault = stage_cluster(options, seed).run();
    if (!fault.empty())
      fault += "\ncredits " + std::to_string(options.credits) + "\n" + to_text(options.training);
    return fault;
  });
}

TEST_CASE("readiness gains where pieces of weight gradients fill the gaps that jitter makes") {
  const auto time_of = [](const plan& steps, execution how) {
    double total = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      stage_cluster cluster(
          {.training = steps,
           .how = how,
           .steps = 1,
           .evaluations_of_3 = 0,
           .jitter = 1,
           .forward = 10000,
           .input_gradient = 10000,
           .weight_gradient = 10000,
           .action_jitter = 0,
           .pieces = how == execution::ready ? 8U : 0U,
           .actions_take = [](std::mt19937_64& random) { return random() % 50 ? 1.0 : 5.0; }},
          seed);
      const std::string fault = cluster.run();
      if (!fault.empty()) FAIL(fault);
      total += static_cast<double>(cluster.finished_at());
    }
    return total;
  };
  const plan one = one_f_one_b(8, 32), zero = zb_h1(8, 32);
  CHECK(time_of(zero, execution::ready) < 0.95 * time_of(zero, execution::planned));
  CHECK(time_of(zero, execution::ready) < 0.92 * time_of(one, execution::planned));
  CHECK(time_of(one, execution::ready) <= 1.001 * time_of(one, execution::planned));
}

TEST_CASE("a whole backward takes what its halves would, whatever the jitter") {
  const auto end_of = [](const plan& steps, std::uint64_t seed) {
    stage_cluster cluster(
        {.training = steps,
         .steps = 1,
         .evaluations_of_3 = 0,
         .jitter = 1,
         .forward = 10000,
         .input_gradient = 10000,
         .weight_gradient = 10000,
         .actions_take = [](std::mt19937_64& random) { return random() % 2 ? 1.0 : 5.0; }},
        seed);
    CHECK(cluster.run().empty());
    return cluster.finished_at();
  };
  const auto whole = parse("schedule whole microbatches 2\nstage 0 cap 1: F0 B0 F1 B1\n");
  const auto split = parse("schedule split microbatches 2\nstage 0 cap 1: F0 I0 W0 F1 I1 W1\n");
  REQUIRE((whole && split));
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    CHECK(end_of(*whole, seed) == end_of(*split, seed));
}

TEST_CASE("stages that mix forwards and backwards differently do not lock on one credit") {
  // Were B1 of stage 1 to wait for a credit of stage 0, F3 of stage 0 would wait for ever.
  const auto mixed = parse(
      "schedule mixed microbatches 4\n"
      "stage 0 cap 4: F0 F1 F2 F3 B0 B1 B2 B3\n"
      "stage 1 cap 1: F0 B0 F1 B1 F2 B2 F3 B3\n");
  REQUIRE(mixed);
  CHECK(stage_cluster({.training = *mixed, .credits = 1}, 1).run().empty());
}

TEST_CASE("with the default credits no schedule waits for them") {
  // A forward takes 1,000 and up to half as much again; a message a twentieth of it, or twice it.
  const auto latency = GENERATE(50U, 500U, 2000U);
  for (const std::uint32_t stages : {2U, 4U, 8U})
    for (const auto& steps : {gpipe(stages, 16), one_f_one_b(stages, 16), zb_h1(stages, 16)}) {
      const auto freely = duration(steps, max_credits, latency, 500);
      const auto share = [&](std::uint32_t credits) {
        return static_cast<double>(duration(steps, credits, latency, 500)) /
               static_cast<double>(freely);
      };
      INFO(steps.schedule << " latency " << latency << " stages " << stages);
      const double by_default = share(default_credits);
      if (by_default > 1.005)
        WARN("time over that without limit: 1 credit " << share(1) << ", 2 " << share(2) << ", 3 "
                                                       << share(3) << ", 8 " << share(8));
      CHECK(by_default <= 1.005);
      if (latency == 2000 && steps.schedule == "gpipe") CHECK(share(1) > 1.2);
    }
}
