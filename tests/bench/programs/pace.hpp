#pragma once

#include <cstdint>
#include <random>

#include "engine/schedule/plan.hpp"

namespace troupe::tests {

/// A layer's share of an action. Micro-batches keep their order in each kind of action, so `turn`
/// counts them over all steps, whatever the schedule.
struct paced_share {
  std::uint32_t layer = 0;
  engine::action_kind kind = engine::action_kind::forward;
  std::uint64_t turn = 0;
};

/// So many neighbouring layers are slow together: those of the smallest slice that a benchmark
/// cuts.
constexpr std::uint32_t paced_together = 4;

/// How many times its usual time a share takes: lognormal, of mean 1. The same for the same share
/// in every run and schedule, measured or simulated.
inline double pace_factor(const paced_share& what, double sigma) {
  if (sigma <= 0) return 1;
  std::seed_seq which{static_cast<std::uint64_t>(what.layer / paced_together),
                      static_cast<std::uint64_t>(what.kind), what.turn};
  std::mt19937_64 random(which);
  return std::lognormal_distribution<double>(-sigma * sigma / 2, sigma)(random);
}

}  // namespace troupe::tests
