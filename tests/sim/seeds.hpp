#pragma once

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <ratio>
#include <string>

namespace troupe::tests {

/// Whether the environment says TROUPE_LONG=1.
[[nodiscard]] inline bool is_long() {
  const char* const wish = std::getenv("TROUPE_LONG");
  return wish != nullptr && std::string(wish) == "1";
}

/// Whether it says TROUPE_SEED=n, so that one run does not stand for all.
[[nodiscard]] inline bool is_replay() {
  return std::getenv("TROUPE_SEED") != nullptr;
}

/// Says, where TROUPE_LONG=1, how many simulated hours went by in the time since `begin`.
inline void say_pace(std::chrono::milliseconds simulated,
                     std::chrono::steady_clock::time_point begin) {
  if (!is_long()) return;
  const std::chrono::duration<double, std::ratio<3600>> hours = simulated;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  constexpr double seconds_of_hour = 3600;
  std::printf("%.1f simulated hours in %.0f s: %.1f simulated hours an hour\n", hours.count(),
              took.count(), hours.count() * seconds_of_hour / took.count());
}

/// Runs `run(seed)`, which returns what went wrong or "", for `count` seeds from `first` on; or for
/// TROUPE_SEED alone.
template <class Run>
void for_seeds(std::uint64_t first, std::uint64_t count, Run run) {
  if (const char* const one = std::getenv("TROUPE_SEED")) {
    first = std::stoull(one);
    count = 1;
  }
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::string fault = run(seed);
    if (!fault.empty())
      FAIL("seed " << seed << ": " << fault << "\nTROUPE_SEED=" << seed << " replays it");
  }
}

/// For the seeds 1 to `count`; a hundred times as many where the environment says TROUPE_LONG=1.
/// TROUPE_SEED replays a run exactly.
template <class Run>
void for_each_seed(std::uint64_t count, Run run) {
  for_seeds(1, is_long() ? count * 100 : count, run);
}

/// For runs that have threads of their own, so that TROUPE_SEED replays their draws alone: with
/// TROUPE_LONG=1 thirty times as many, and other seeds each time.
template <class Run>
void for_each_fresh_seed(std::uint64_t count, Run run) {
  if (is_long()) return for_seeds(std::random_device()(), count * 30, run);
  for_seeds(1, count, run);
}

}  // namespace troupe::tests
