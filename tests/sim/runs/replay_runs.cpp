#include "tests/sim/runs/replay_runs.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <exception>

#include "engine/schedule/plan_text.hpp"
#include "tests/sim/runs/any_plan.hpp"

namespace troupe::tests::replays {
namespace {

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
  if (options.understudies > 0) losses += "; understudies " + std::to_string(options.understudies);
  for (const auto& [event, which] : options.understudy_losses)
    losses += ", of which one is lost after event " + std::to_string(event);
  for (const auto& [event, which] : options.understudy_doubts)
    losses += ", of which one, which lives, is taken for lost after event " + std::to_string(event);
  if (options.data_at) losses += "; the data are read by stage " + std::to_string(*options.data_at);
  for (const auto host : options.hosts) losses += "; a stage on host " + std::to_string(host);
  if (options.in_pieces) losses += "; versions come in pieces";
  if (options.computes_versions)
    losses += "; keepers compute versions, " + std::to_string(options.odd_of_8) +
              " of eight to other bits";
  return fault + "\nlost:" + losses + "; replicas " + std::to_string(options.replicas) +
         "; credits " + std::to_string(options.credits) + ", an update every " +
         std::to_string(options.accumulate) + " steps, a checkpoint every " +
         std::to_string(options.checkpoint_every) + "\n" + to_text(options.training);
}

std::string compare_numbers(const replay_options& options, std::uint64_t seed, const calm_end& calm,
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

}  // namespace

replay_options anything(std::mt19937_64& random) {
  const auto below = [&](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  const std::uint32_t stages = below(4) + 1;
  const std::uint32_t microbatches = below(5) + 1;
  replay_options options;
  options.training = any_plan(stages, microbatches, random);
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

replay_options with_replicas(std::mt19937_64& random) {
  auto options = anything(random);
  options.replicas = static_cast<std::uint32_t>(random() % 2) + 2;
  return options;
}

replay_options with_shared_state(std::mt19937_64& random) {
  auto options = with_replicas(random);
  options.shares_state = true;
  return options;
}

replay_options with_returns(std::mt19937_64& random) {
  auto options = random() % 2 == 0 ? anything(random) : with_replicas(random);
  options.shares_state = options.replicas > 1 && random() % 2 == 0;
  options.returns = true;
  options.checkpoint_every = static_cast<std::uint32_t>(random() % 4);
  options.spoilt_of_8 = random() % 2 == 0 ? 3 : 0;
  options.steps += 3;
  return options;
}

replay_options on_hosts(std::mt19937_64& random) {
  for (;;) {
    auto options = with_returns(random);
    const auto places = places_of(options);
    if (places < 2) continue;
    const auto hosts = random() % std::min<std::size_t>(places - 1, 3) + 2;
    for (std::size_t place = 0; place < places; ++place)
      options.hosts.push_back(static_cast<std::uint32_t>(place < hosts ? place : random() % hosts));
    std::ranges::shuffle(options.hosts, random);
    return options;
  }
}

replay_options on_the_trainers_host(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.lends = true;
  return options;
}

replay_options in_pieces(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.in_pieces = true;
  return options;
}

replay_options computed_by_keepers(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.shares_state = false;
  options.computes_versions = true;
  options.in_pieces = random() % 2 == 0;
  options.odd_of_8 = random() % 2 == 0 ? 2 : 0;
  return options;
}

replay_options computed_by_what_outlives(std::mt19937_64& random) {
  auto options = computed_by_keepers(random);
  options.outlives = true;
  return options;
}

replay_options with_data(std::mt19937_64& random) {
  auto options = with_returns(random);
  options.data_at = some_place(options, random);
  options.lends = random() % 2 == 0;
  return options;
}

std::uint32_t places_of(const replay_options& options) {
  return static_cast<std::uint32_t>(options.training.stages.size() * options.replicas);
}

std::uint32_t some_place(const replay_options& options, std::mt19937_64& random) {
  return static_cast<std::uint32_t>(random() % places_of(options));
}

void lose_understudy(replay_options& options, std::uint64_t event, std::mt19937_64& random) {
  auto& how = random() % 4 == 0 ? options.understudy_doubts : options.understudy_losses;
  const auto from = event > 10 ? event - 10 : 1;
  how[from + random() % 40] = static_cast<std::uint32_t>(random());
}

std::uint32_t some_host(const replay_options& options, std::mt19937_64& random) {
  return options.hosts[random() % options.hosts.size()];
}

calm_end calm_end_of(replay_options options, std::uint64_t seed, tally& of) {
  options.losses.clear();
  options.host_losses.clear();
  options.doubts.clear();
  options.cuts.clear();
  options.understudy_losses.clear();
  options.understudy_doubts.clear();
  replay_company calm(options, seed);
  if (auto fault = calm.run(); !fault.empty()) return {"without a loss: " + fault, {}};
  of.simulated += calm.simulated();
  return {"", calm.outcome()};
}

std::string compare(const replay_options& options, std::uint64_t seed, const calm_end& calm,
                    tally& of) {
  return with_plan(compare_numbers(options, seed, calm, of), options);
}

std::string compare(const replay_options& options, std::uint64_t seed, tally& of) {
  return compare(options, seed, calm_end_of(options, seed + 1, of), of);
}

bool is_noticed(const replay_options& options, std::uint64_t seed) {
  tally of;
  try {
    return !compare(options, seed, of).empty();
  } catch (const std::exception&) {
    return true;
  }
}

void expect_calm_end(const replay_options& options, std::uint64_t seed, const calm_end& calm,
                     tally& of) {
  const auto fault = compare(options, seed, calm, of);
  if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
}

std::uint64_t events_of(const replay_options& options, std::uint64_t seed) {
  replay_company calm(options, seed);
  static_cast<void>(calm.run());
  return calm.events();
}

}  // namespace troupe::tests::replays
