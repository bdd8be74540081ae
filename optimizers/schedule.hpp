#pragma once

#include <cstdint>

namespace troupe::optimizers {

/// The shape of a learning rate schedule.
enum class rate_curve : std::uint8_t {
  constant,
  linear,      ///< Falls linearly to the end.
  step,        ///< Is multiplied by `step_factor` after each `step_every` steps.
  cosine,      ///< Loshchilov and Hutter, "SGDR", 2017, without restarts.
  one_cycle,   ///< Smith and Topin, "Super-convergence", 2018: up to `peak`, down to the end.
  polynomial,  ///< Falls to the end with the remaining share of the run to the `power`.
};

struct rate_schedule {
  rate_curve curve = rate_curve::constant;
  std::uint64_t warmup = 0;       ///< Steps of a linear rise before the curve begins.
  double end = 0;                 ///< The final rate, as a share of the full rate.
  std::uint64_t step_every = 30;  ///< At least 1.
  double step_factor = 0.1;
  double power = 2;
  double peak = 0.3;    ///< one_cycle: the share of the steps in which the rate rises.
  double start = 0.04;  ///< one_cycle: the initial rate, as a share of the full rate.

  bool operator==(const rate_schedule&) const = default;
};

/// The rate of a step (the first is 1) as a share of the full rate. After `warmup` steps, of which
/// the last has the full rate, the curve goes through the other steps of `total_steps`: its first
/// has the full rate (one_cycle: `start`), and it would reach `end` one step after the last.
[[nodiscard]] double rate_share(const rate_schedule& schedule, std::uint64_t step,
                                std::uint64_t total_steps) noexcept;

}  // namespace troupe::optimizers
