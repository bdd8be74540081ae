#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace troupe::tests {

/// Runs `run(seed)`, which returns what went wrong or "", for the seeds 1 to `count`; a hundred
/// times as many where the environment says TROUPE_LONG=1; or for TROUPE_SEED alone, which replays
/// a run exactly.
template <class Run>
void for_each_seed(std::uint64_t count, Run run) {
  std::uint64_t first = 1;
  const char* const wish = std::getenv("TROUPE_LONG");
  if (wish != nullptr && std::string(wish) == "1") count *= 100;
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

}  // namespace troupe::tests
