// A stage that is lost alone, at whatever moment: the others compute nothing again, and the run
// ends with the numbers of one that nothing happened to.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/sim/replay_company.hpp"
#include "tests/sim/seeds.hpp"
#include "tests/sim/stage_cluster.hpp"

using namespace troupe;
using namespace troupe::engine;
using tests::replay_company;
using tests::replay_options;

namespace {

/// Any plan, any credits, any network.
replay_options anything(std::mt19937_64& random) {
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  const std::uint32_t stages = below(4) + 1;
  const std::uint32_t microbatches = below(5) + 1;
  replay_options options;
  options.training = tests::any_plan(stages, microbatches, random);
  options.credits = below(4) + 1;
  options.steps = below(4) + 3;
  options.accumulate = below(3) == 0 ? below(2) + 2 : 1;
  options.evaluate_every = below(2) ? below(3) + 1 : 0;
  options.jitter = below(2) ? 100 : 5;
  options.ties = below(2) == 0;
  options.left_out_of_8 = below(3) == 0 ? 2 : 0;
  options.repeats = below(2) == 0;
  return options;
}

/// The same in two or three replicas.
replay_options with_replicas(std::mt19937_64& random) {
  auto options = anything(random);
  options.replicas = static_cast<std::uint32_t>(random() % 2) + 2;
  return options;
}

/// The same in replicas that share out the update.
replay_options with_shared_state(std::mt19937_64& random) {
  auto options = with_replicas(random);
  options.shares_state = true;
  return options;
}

/// The same, whose stages all go back where there is no replay; with checkpoints, some of which
/// cannot be read later.
replay_options with_returns(std::mt19937_64& random) {
  auto options = random() % 2 == 0 ? anything(random) : with_replicas(random);
  options.shares_state = options.replicas > 1 && random() % 2 == 0;
  options.returns = true;
  options.checkpoint_every = static_cast<std::uint32_t>(random() % 4);
  options.spoilt_of_8 = random() % 2 == 0 ? 3 : 0;
  options.steps += 3;
  return options;
}

/// The same on two to four hosts, each with at least one stage's process.
replay_options on_hosts(std::mt19937_64& random) {
  for (;;) {
    auto options = with_returns(random);
    const auto places = options.training.stages.size() * options.replicas;
    if (places < 2) continue;
    const auto hosts = random() % std::min<std::size_t>(places - 1, 3) + 2;
    for (std::size_t place = 0; place < places; ++place)
      options.hosts.push_back(static_cast<std::uint32_t>(place < hosts ? place : random() % hosts));
    std::ranges::shuffle(options.hosts, random);
    return options;
  }
}

/// The same on one host, where the trainer keeps versions too.
replay_options on_the_trainers_host(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.lends = true;
  return options;
}

/// The same as with_returns, and the process of a stage reads the data.
replay_options with_data(std::mt19937_64& random) {
  auto options = with_returns(random);
  const auto places = options.training.stages.size() * options.replicas;
  options.data_at = static_cast<std::uint32_t>(random() % places);
  options.lends = random() % 2 == 0;
  return options;
}

std::uint32_t some_host(const replay_options& options, std::mt19937_64& random) {
  return options.hosts[random() % options.hosts.size()];
}

struct tally {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds simulated{0};
  std::uint64_t losses = 0, replays = 0, of_several = 0, in_evaluations = 0, returns = 0;
  std::uint64_t given_up = 0, with_data = 0;
  replay_company::return_counts back = {};

  void add(const replay_company::return_counts& more) {
    back.versions += more.versions;
    back.checkpoints += more.checkpoints;
    back.beginnings += more.beginnings;
    back.passed_over += more.passed_over;
    back.interrupted += more.interrupted;
    back.hosts += more.hosts;
    back.fenced += more.fenced;
  }
};

/// How a run ends that nothing happens to.
struct calm_end {
  std::string fault;
  std::vector<std::uint64_t> outcome;
};

calm_end calm_end_of(replay_options options, std::uint64_t seed, tally& of) {
  options.losses.clear();
  options.host_losses.clear();
  options.doubts.clear();
  options.cuts.clear();
  replay_company calm(options, seed);
  if (auto fault = calm.run(); !fault.empty()) return {"without a loss: " + fault, {}};
  of.simulated += calm.simulated();
  return {"", calm.outcome()};
}

/// One run with losses against the same without.
std::string compare(const replay_options& options, std::uint64_t seed, const calm_end& calm,
                    tally& of) {
  if (!calm.fault.empty()) return calm.fault;
  replay_company stormy(options, seed);
  if (auto fault = stormy.run(); !fault.empty()) return fault;
  of.simulated += stormy.simulated();
  of.losses += options.losses.size();
  of.replays += stormy.replays();
  of.of_several += stormy.replays_of_several();
  of.in_evaluations += stormy.replays_in_evaluations();
  of.with_data += stormy.replays_with_data();
  of.add(stormy.returns());
  if (stormy.has_given_up()) {
    ++of.given_up;
    return "";
  }
  if (!stormy.fell_back().empty()) {
    ++of.returns;
    return options.losses.size() > 1 ? "" : "all stages went back: " + stormy.fell_back();
  }
  return stormy.outcome() == calm.outcome ? "" : "the run has ended with other numbers";
}

/// The same, with the one without under another timing.
std::string compare(const replay_options& options, std::uint64_t seed, tally& of) {
  return compare(options, seed, calm_end_of(options, seed + 1, of), of);
}

std::string with_plan(const std::string& fault, const replay_options& options) {
  if (fault.empty()) return fault;
  std::string losses;
  for (const auto& [event, stage] : options.losses)
    losses += " stage " + std::to_string(stage) + " after event " + std::to_string(event);
  for (const auto& [event, host] : options.host_losses)
    losses += " host " + std::to_string(host) + " after event " + std::to_string(event);
  for (const auto& [event, stage] : options.doubts)
    losses +=
        " stage " + std::to_string(stage) + ", which lives, after event " + std::to_string(event);
  for (const auto& [event, cut] : options.cuts)
    losses += " the way from " + std::to_string(cut.from) + " to " + std::to_string(cut.to) +
              (cut.both_ways ? " and back" : "") + " for " + std::to_string(cut.lasts) +
              " ms after event " + std::to_string(event);
  if (options.data_at) losses += "; the data are read by stage " + std::to_string(*options.data_at);
  for (const auto host : options.hosts) losses += "; a stage on host " + std::to_string(host);
  return fault + "\nlost:" + losses + "; replicas " + std::to_string(options.replicas) +
         "; credits " + std::to_string(options.credits) + ", an update every " +
         std::to_string(options.accumulate) + " steps, a checkpoint every " +
         std::to_string(options.checkpoint_every) + "\n" + to_text(options.training);
}

std::uint64_t events_of(const replay_options& options, std::uint64_t seed) {
  replay_company calm(options, seed);
  static_cast<void>(calm.run());
  return calm.events();
}

/// Runs of `make`, each with the losses that `lose` adds, which is told how many events there are.
template <class Make, class Lose>
tally after(std::uint64_t runs, Make make, Lose lose) {
  tally of;
  tests::for_each_seed(runs, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    replay_options options = make(random);
    lose(options, events_of(options, seed), random);
    return with_plan(compare(options, seed, of), options);
  });
  tests::say_pace(of.simulated, of.begin);
  return of;
}

/// The same with so many losses at any events, and with `steps` steps if that is not 0.
template <class Make>
tally after_losses(std::uint64_t runs, int losses, std::uint32_t steps, Make make) {
  const auto with_steps = [&](std::mt19937_64& random) {
    replay_options options = make(random);
    if (steps > 0) options.steps = steps;
    return options;
  };
  return after(runs, with_steps, [losses](auto& options, std::uint64_t events, auto& random) {
    const auto places = options.training.stages.size() * options.replicas;
    for (int i = 0; i < losses; ++i)
      options.losses[random() % events + 1] = static_cast<std::uint32_t>(random() % places);
  });
}

}  // namespace

TEST_CASE("a stage that is lost at any moment is replayed to the same numbers, and no other is") {
  const auto of = after_losses(500, 1, 0, anything);
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages that are lost one after the other are replayed, or all go back") {
  const auto of = after_losses(250, 3, 8, anything);
  CHECK(of.replays > of.losses / 3);
  CHECK(of.in_evaluations > of.losses / 20);
}

TEST_CASE("a stage of one replica is replayed to the same numbers, and those of others are not") {
  const auto of = after_losses(500, 1, 0, with_replicas);
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages of replicas that are lost one after the other are replayed, or all go back") {
  const auto of = after_losses(250, 3, 8, with_replicas);
  CHECK(of.replays > of.losses / 3);
}

TEST_CASE("a stage of replicas that share out the update is replayed to the same numbers") {
  const auto of = after_losses(500, 1, 0, with_shared_state);
  CHECK(of.replays > of.losses * 3 / 4);
  CHECK(of.in_evaluations > of.losses / 10);
}

TEST_CASE("stages of such replicas that are lost one after the other are replayed, or go back") {
  const auto of = after_losses(250, 3, 8, with_shared_state);
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
    tally of;
    for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 1U); ++seed) {
      const auto events = events_of(options, seed);
      const auto calm = calm_end_of(options, seed + 1, of);
      for (std::uint64_t event = 1; event <= events; ++event)
        for (std::uint32_t place = 0; place < stages * options.replicas; ++place) {
          options.losses = {{event, place}};
          const auto fault = with_plan(compare(options, seed, calm, of), options);
          if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
        }
      options.losses.clear();
    }
    tests::say_pace(of.simulated, of.begin);
    CHECK(of.replays > of.losses / 2);
  }
}

TEST_CASE("each stage of a small pipeline is lost at each event of a run") {
  for (const std::string schedule : {"1f1b", "zb-h1", "zb-v"}) {
    replay_options options{.training = plan_step({schedule}, 3, 4).value(),
                           .steps = 3,
                           .evaluate_every = 2,
                           .ties = true};
    tally of;
    for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 1U); ++seed) {
      const auto events = events_of(options, seed);
      const auto calm = calm_end_of(options, seed + 1, of);
      for (std::uint64_t event = 1; event <= events; ++event)
        for (std::uint32_t stage = 0; stage < 3; ++stage) {
          options.losses = {{event, stage}};
          const auto fault = with_plan(compare(options, seed, calm, of), options);
          if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
        }
      options.losses.clear();
    }
    tests::say_pace(of.simulated, of.begin);
    CHECK(of.replays > of.losses / 2);
  }
}

// Several stages are lost at once, or one while others are replayed.

namespace {

/// Two or three stages, one right after the other.
void lose_some(replay_options& options, std::uint64_t events, std::mt19937_64& random) {
  const auto places = options.training.stages.size() * options.replicas;
  const auto first = random() % events + 1;
  for (std::uint64_t i = random() % 2 + 2; i > 0; --i)
    options.losses[first + i] = static_cast<std::uint32_t>(random() % places);
}

/// Each two stages are lost so many events apart, the first one at each event of a run, or at some.
tally after_each_pair(replay_options options, const std::vector<std::uint64_t>& apart) {
  tally of;
  const auto places = static_cast<std::uint32_t>(options.training.stages.size() * options.replicas);
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
          const auto fault = with_plan(compare(options, seed, calm, of), options);
          if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
        }
  }
  tests::say_pace(of.simulated, of.begin);
  return of;
}

}  // namespace

TEST_CASE(
    "stages that are lost together are replayed to the same numbers where versions are left") {
  const auto of = after(250, on_hosts, lose_some);
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
  const auto of =
      after(200, on_the_trainers_host, [](auto& options, std::uint64_t events, auto& random) {
        const auto places = options.training.stages.size() * options.replicas;
        const auto first = random() % events + 1;
        for (std::uint32_t place = 0; place < places; ++place)
          if (random() % 4 != 0) options.losses[first + place] = place;
      });
  CHECK(of.of_several > 50);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
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

// The process of a stage reads the data, and is lost.

TEST_CASE("a stage that is lost with the data is replayed to the same numbers, and no other is") {
  const auto of = after(400, with_data, [](auto& options, std::uint64_t events, auto& random) {
    options.losses[random() % events + 1] = *options.data_at;
  });
  CHECK(of.with_data > of.losses / 2);
  CHECK(of.in_evaluations > 0);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE("the data are lost again, or another stage is, while batches are fed again") {
  const auto of = after(500, with_data, [](auto& options, std::uint64_t events, auto& random) {
    const auto places = options.training.stages.size() * options.replicas;
    auto event = random() % events + 1;
    options.losses[event] = *options.data_at;
    for (int i = 0; i < 2; ++i) {
      event += random() % 40 + 1;
      options.losses[event] =
          random() % 2 == 0 ? *options.data_at : static_cast<std::uint32_t>(random() % places);
    }
  });
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
          const auto fault = with_plan(compare(options, seed, calm, of), options);
          if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
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
  CHECK(of.with_data > 40);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

// All stages go back.

TEST_CASE(
    "a run goes on that loses a host with all stages and keepers there, and to no checkpoint") {
  const auto of = after(400, on_hosts, [](auto& options, std::uint64_t events, auto& random) {
    options.host_losses[random() % events + 1] = some_host(options, random);
  });
  CHECK(of.back.hosts > 320);
  CHECK(of.replays > of.back.hosts * 2 / 3);
  CHECK(of.of_several > of.back.hosts / 4);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE("a run goes on that loses hosts and stages one after the other") {
  const auto of = after(600, on_hosts, [](auto& options, std::uint64_t events, auto& random) {
    const auto first = random() % events + 1;
    options.host_losses[first] = some_host(options, random);
    options.host_losses[first + random() % (events / 2 + 1) + 1] = some_host(options, random);
    options.losses[random() % events + 1] =
        static_cast<std::uint32_t>(random() % options.hosts.size());
  });
  CHECK(of.back.hosts > 720);
  CHECK(of.of_several > of.back.hosts / 4);
  CHECK(of.back.versions > 0);
  CHECK(of.back.checkpoints > 0);
}

TEST_CASE("a run that loses a stage goes on, and never has to go back to a checkpoint") {
  const auto of = after_losses(400, 1, 0, with_returns);
  CHECK(of.replays > of.losses * 2 / 3);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE(
    "a run that loses stages with their keepers goes back to its newest readable checkpoint") {
  const auto of = after(1000, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    const auto places = options.training.stages.size() * options.replicas;
    for (std::uint64_t pairs = random() % 2 + 1; pairs > 0; --pairs) {
      const auto event = random() % events + 1;
      const auto place = static_cast<std::uint32_t>(random() % places);
      options.losses[event] = place;
      options.losses[event + random() % 30 + 1] = static_cast<std::uint32_t>((place + 1) % places);
    }
  });
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
        const auto fault = with_plan(compare(options, seed, calm, of), options);
        if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
      }
    options.losses.clear();
  }
  tests::say_pace(of.simulated, of.begin);
  CHECK(of.back.checkpoints > of.losses / 4);
  CHECK(of.back.interrupted > 0);
  CHECK(of.given_up == 0);
}

// Processes that are taken for lost and live, and ways between two that are cut.

namespace {

std::uint32_t some_place(const replay_options& options, std::mt19937_64& random) {
  return static_cast<std::uint32_t>(random() % (options.training.stages.size() * options.replicas));
}

/// Between two stages, or a stage and the trainer, one way or both, for as long as silence is
/// noticed or not.
replay_options::cut some_cut(const replay_options& options, std::mt19937_64& random) {
  const auto places = options.training.stages.size() * options.replicas;
  replay_options::cut made{.from = some_place(options, random)};
  made.to = static_cast<std::uint32_t>((made.from + 1 + random() % places) % (places + 1));
  if (random() % 2 == 0) std::swap(made.from, made.to);
  made.both_ways = random() % 2 == 0;
  made.lasts = static_cast<std::uint32_t>(random() % 3000 + 1);
  return made;
}

}  // namespace

TEST_CASE("a living stage that is taken for lost is replaced to the same numbers") {
  const auto of = after(250, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    options.doubts[random() % events + 1] = some_place(options, random);
  });
  CHECK(of.back.fenced > 225);
  CHECK(of.replays > of.back.fenced / 2);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE("runs go on whose stages are lost, or are taken for lost and live, again and again") {
  const auto of = after(250, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    for (int i = 0; i < 3; ++i) options.doubts[random() % events + 1] = some_place(options, random);
    options.losses[random() % events + 1] = some_place(options, random);
  });
  CHECK(of.back.fenced > 450);
  CHECK(of.replays > of.back.fenced / 5);
}

TEST_CASE("living stages that are taken for lost cost no checkpoint where the trainer keeps too") {
  const auto of =
      after(300, on_the_trainers_host, [](auto& options, std::uint64_t events, auto& random) {
        for (int i = 0; i < 3; ++i)
          options.doubts[random() % events + 1] = some_place(options, random);
      });
  CHECK(of.back.fenced > 450);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE("each stage of a small pipeline is taken for lost at each event of a run, and lives") {
  replay_options options{.training = plan_step({"1f1b"}, 3, 2).value(),
                         .steps = 3,
                         .evaluate_every = 2,
                         .ties = true,
                         .returns = true};
  tally of;
  for (std::uint64_t seed = 1; seed <= (tests::is_long() ? 50U : 1U); ++seed) {
    const auto events = events_of(options, seed);
    const auto calm = calm_end_of(options, seed + 1, of);
    for (std::uint64_t event = 1; event <= events; ++event)
      for (std::uint32_t stage = 0; stage < 3; ++stage) {
        options.doubts = {{event, stage}};
        const auto fault = with_plan(compare(options, seed, calm, of), options);
        if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
      }
    options.doubts.clear();
  }
  tests::say_pace(of.simulated, of.begin);
  CHECK(of.replays > of.back.fenced / 2);
}

TEST_CASE("a way that is cut for a while, to one side or both, costs no bits and no checkpoint") {
  const auto of = after(250, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    options.cuts[random() % events + 1] = some_cut(options, random);
  });
  CHECK(of.back.fenced > 25);
  CHECK(of.replays > 25);
  CHECK(of.back.checkpoints + of.back.beginnings == 0);
}

TEST_CASE("runs go on that lose a stage while ways are cut") {
  const auto of = after(150, with_returns, [](auto& options, std::uint64_t events, auto& random) {
    for (int i = 0; i < 2; ++i) options.cuts[random() % events + 1] = some_cut(options, random);
    options.losses[random() % events + 1] = some_place(options, random);
  });
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
    options.judges_senders = false;
    tally of;
    try {
      if (!compare(options, seed, of).empty()) ++noticed;
    } catch (const std::exception&) {  // a stage lacks what it should have
      ++noticed;
    }
  }
  CHECK(noticed > 5);
}
