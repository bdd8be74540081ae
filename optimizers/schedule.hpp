#pragma once

#include <cstdint>

namespace troupe::optimizers {

/// How a learning rate moves over a run.
enum class rate_curve : std::uint8_t {
  constant,
  linear,      ///< Falls evenly to the end.
  step,        ///< Is multiplied by `step_factor` after each `step_every` steps.
  cosine,      ///< Loshchilov and Hutter, "SGDR", 2017, without restarts.
  one_cycle,   ///< Smith and Topin, "Super-convergence", 2018: up to `peak`, down to the end.
  polynomial,  ///< Falls to the end as the `power` of what is left of the run.
};

struct rate_schedule {
  rate_curve curve = rate_curve::constant;
  std::uint64_t warmup = 0;       ///< Steps of a linear rise before the curve begins.
  double end = 0;                 ///< Where the curve ends, as a share of the full rate.
  std::uint64_t step_every = 30;  ///< At least 1.
  double step_factor = 0.1;
  double power = 2;
  double peak = 0.3;    ///< one_cycle: the share of its steps in which it rises.
  double start = 0.04;  ///< one_cycle: where it rises from, as a share of the full rate.

  bool operator==(const rate_schedule&) const = default;
};

/// The rate of a step (the first is 1) as a share of the full rate. After `warmup` steps, of which
/// the last has the full rate, the curve goes through the other steps of `total_steps`: its first
/// has the full rate (one_cycle: `start`), and it would reach `end` one step after the last.
[[nodiscard]] double rate_share(const rate_schedule& schedule, std::uint64_t step,
                                std::uint64_t total_steps) noexcept;

}  // namespace troupe::optimizers
