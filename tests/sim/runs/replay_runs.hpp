#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/replay_company.hpp"
#include "tests/sim/seeds.hpp"

/// Runs of a company whose stages are lost, each beside one that nothing happens to.
namespace troupe::tests::replays {

/// Any plan, any credits, any network.
replay_options anything(std::mt19937_64& random);
/// The same in two or three replicas.
replay_options with_replicas(std::mt19937_64& random);
/// The same in replicas that share out the update.
replay_options with_shared_state(std::mt19937_64& random);
/// The same, whose stages all go back where there is no replay; with checkpoints, some of which
/// cannot be read later.
replay_options with_returns(std::mt19937_64& random);
/// The same on two to four hosts, each with at least one stage's process.
replay_options on_hosts(std::mt19937_64& random);
/// The same as with_returns on one host, where the trainer keeps versions too.
replay_options on_the_trainers_host(std::mt19937_64& random);
/// The same as with_returns, whose versions come to their keepers in pieces.
replay_options in_pieces(std::mt19937_64& random);
/// The same as with_returns, where keepers compute versions, some of them to other bits.
replay_options computed_by_keepers(std::mt19937_64& random);
/// The same, and what outlives the trainer is one of them.
replay_options computed_by_what_outlives(std::mt19937_64& random);
/// The same as with_returns, and the process of a stage reads the data.
replay_options with_data(std::mt19937_64& random);

std::uint32_t some_host(const replay_options& options, std::mt19937_64& random);
/// Of all replicas' stages.
std::uint32_t places_of(const replay_options& options);
std::uint32_t some_place(const replay_options& options, std::mt19937_64& random);
/// An understudy that waits is lost, or is taken for lost and lives, before or while it is given
/// the place of a process that is lost after that event.
void lose_understudy(replay_options& options, std::uint64_t event, std::mt19937_64& random);

/// What has happened in runs.
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
    back.computed += more.computed;
    back.other_bits += more.other_bits;
    back.refused += more.refused;
    back.understudies += more.understudies;
    back.asked_in_vain += more.asked_in_vain;
  }
};

/// How a run ends that nothing happens to.
struct calm_end {
  std::string fault;
  std::vector<std::uint64_t> outcome;
};

calm_end calm_end_of(replay_options options, std::uint64_t seed, tally& of);

/// One run with losses against the same without. Empty, or what is wrong, with the run's plan.
std::string compare(const replay_options& options, std::uint64_t seed, const calm_end& calm,
                    tally& of);
/// The same, with the one without under another timing.
std::string compare(const replay_options& options, std::uint64_t seed, tally& of);
/// Whether something is wrong with the run, a stage of which may lack what it should have.
bool is_noticed(const replay_options& options, std::uint64_t seed);

/// Ends the test where something is wrong with that run.
void expect_calm_end(const replay_options& options, std::uint64_t seed, const calm_end& calm,
                     tally& of);

/// Of the run without losses.
std::uint64_t events_of(const replay_options& options, std::uint64_t seed);

/// Runs of `make`, each with the losses that `lose` adds, which is told how many events there are.
template <class Make, class Lose>
tally after(std::uint64_t runs, Make make, Lose lose) {
  tally of;
  for_each_seed(runs, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    replay_options options = make(random);
    lose(options, events_of(options, seed), random);
    return compare(options, seed, of);
  });
  say_pace(of.simulated, of.begin);
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
    for (int i = 0; i < losses; ++i)
      options.losses[random() % events + 1] = some_place(options, random);
  });
}

/// The same with so many that are taken for lost and live, and losses, each at any event.
template <class Make>
tally after_doubts(std::uint64_t runs, int doubts, int losses, Make make) {
  return after(runs, make, [=](auto& options, std::uint64_t events, auto& random) {
    for (int i = 0; i < doubts; ++i)
      options.doubts[random() % events + 1] = some_place(options, random);
    for (int i = 0; i < losses; ++i)
      options.losses[random() % events + 1] = some_place(options, random);
  });
}

/// Runs of one small company for a few seeds, each with what `strike` does to one place at one
/// event: it is told the run's options, the event and the place.
template <class Strike>
tally at_each_event(const replay_options& options, Strike strike) {
  tally of;
  for (std::uint64_t seed = 1; seed <= (is_long() ? 50U : 1U); ++seed) {
    const auto events = events_of(options, seed);
    const auto calm = calm_end_of(options, seed + 1, of);
    for (std::uint64_t event = 1; event <= events; ++event)
      for (std::uint32_t place = 0; place < places_of(options); ++place) {
        auto struck = options;
        strike(struck, event, place);
        expect_calm_end(struck, seed, calm, of);
      }
  }
  say_pace(of.simulated, of.begin);
  return of;
}

}  // namespace troupe::tests::replays
