// A whole run: stages, what keeps their versions, trainers and the disk with the checkpoints are
// lost one after the other, each at any event.

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <random>
#include <string>
#include <utility>

#include "tests/sim/runs/replay_runs.hpp"
#include "tests/sim/seeds.hpp"

using namespace troupe;
using namespace troupe::tests::replays;
using tests::left_run;
using tests::replay_company;
using tests::replay_options;

namespace {

constexpr int most_trainers_lost = 3;

/// What has befallen runs, and where they have gone on from.
struct restart_tally {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds simulated{0};
  std::uint64_t stages = 0, trainers = 0, outliving = 0, powers = 0;  // lost
  std::uint64_t torn = 0;  // files of checkpoints that were being written
  std::uint64_t replays = 0, returns_to_disk = 0;
  std::uint64_t understudies = 0, asked_in_vain = 0;  // see return_counts
  tests::restart_counts counts = {};

  void add(const replay_options& life, const replay_company& of) {
    simulated += of.simulated();
    stages += life.losses.size();
    replays += of.replays();
    returns_to_disk += of.returns().checkpoints;
    understudies += of.returns().understudies;
    asked_in_vain += of.returns().asked_in_vain;
    if (of.is_trainer_lost()) ++trainers;
  }
};

/// Any run, of which half keep versions in a process that outlives trainers.
replay_options with_restarts(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.restarts = true;
  options.checkpoint_every = static_cast<std::uint32_t>(random() % 3) + 1;
  options.spoilt_of_8 = 0;
  options.outlives = random() % 2 == 0;
  options.in_pieces = random() % 2 == 0;
  options.computes_versions = !options.shares_state && random() % 2 == 0;
  options.understudies = random() % 3;
  return options;
}

/// One stage, a stage and then the next one, which keeps its versions, or none.
void lose_stages_of_life(replay_options& life, std::uint64_t events, std::mt19937_64& random) {
  const auto kind = random() % 4;
  if (kind == 0) return;
  const auto event = random() % events + 1;
  const auto place = some_place(life, random);
  life.losses[event] = place;
  if (life.understudies > 0) lose_understudy(life, event, random);
  if (kind > 1) life.losses[event + random() % 30 + 1] = (place + 1) % places_of(life);
}

/// A trainer is lost alone, with what outlives it, or with the power of its host.
class run_of_trainers {
 public:
  run_of_trainers(std::uint64_t seed, bool syncs, restart_tally& of)
      : seed_(seed), random_(seed), options_(with_restarts(random_)), of_(of) {
    left_.disk = tests::checkpoint_disk(syncs);
  }

  /// What went wrong, or "".
  std::string run() {
    replay_company calm(options_, seed_ + 1);
    if (const auto fault = calm.run(); !fault.empty()) return "without a loss: " + fault;
    of_.simulated += calm.simulated();
    for (int lost = 0;; ++lost) {
      const auto life = next_life(lost, calm.events());
      replay_company company(life, random_(), std::move(left_));
      if (const auto fault = company.run(); !fault.empty())
        return "after " + std::to_string(lost) + " lost trainers: " + fault;
      of_.add(life, company);
      const bool is_over = !company.is_trainer_lost();
      if (is_over && company.outcome() != calm.outcome())
        return "the run has ended with other numbers";
      left_ = company.leave();
      if (is_over) break;
      lose_more(life.outlived_events == 0);
    }
    note_counts();
    return "";
  }

 private:
  replay_options next_life(int lost, std::uint64_t events) {
    auto life = options_;
    lose_stages_of_life(life, events, random_);
    if (lost == most_trainers_lost) return life;
    life.trainer_loss = random_() % events + 1;
    if (random_() % 2 == 0)
      life.outlived_events = random_() % 60 + 1;
    else
      life.amid_write = random_() % 2 == 0;
    return life;
  }

  /// What is lost with the trainer: nothing more, what outlives it, or the power of the host, which
  /// ends all at the same moment.
  void lose_more(bool at_once) {
    const bool loses_power = at_once && random_() % 3 > 0;
    if (loses_power) {
      ++of_.powers;
      of_.torn += left_.disk.lose_power(random_);
    }
    if (options_.outlives && !loses_power && random_() % 3 > 0) return;
    if (options_.outlives) ++of_.outliving;
    left_.kept = {};
    left_.least = 0;
  }

  void note_counts() {
    of_.counts.from_versions += left_.counts.from_versions;
    of_.counts.from_disk += left_.counts.from_disk;
    of_.counts.written += left_.counts.written;
    of_.counts.given_up += left_.counts.given_up;
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  const replay_options options_;
  restart_tally& of_;
  left_run left_;
};

}  // namespace

TEST_CASE("a run that loses trainers and stages and unsynced writes ends with its calm numbers") {
  restart_tally of;
  tests::for_each_seed(1'000,
                       [&](std::uint64_t seed) { return run_of_trainers(seed, true, of).run(); });
  tests::say_pace(of.simulated, of.begin);
  if (tests::is_replay()) return;
  CHECK(of.stages > 0);
  CHECK(of.trainers > 0);
  CHECK(of.outliving > 0);
  CHECK(of.powers > 0);
  CHECK(of.torn > 0);
  CHECK(of.replays > 0);
  CHECK(of.understudies > 0);
  CHECK(of.asked_in_vain > 0);
  CHECK(of.returns_to_disk > 0);
  CHECK(of.counts.from_versions > 0);
  CHECK(of.counts.from_disk > 0);
  CHECK(of.counts.written > 0);
  CHECK(of.counts.given_up > 0);
}

TEST_CASE("a run whose disk has nothing synced is noticed") {
  if (tests::is_replay()) SKIP("the seeds of this test are its own");
  restart_tally of;
  std::uint64_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    try {
      if (!run_of_trainers(seed, false, of).run().empty()) ++noticed;
    } catch (const std::exception&) {
      ++noticed;
    }
  }
  CHECK(noticed > 0);
}
