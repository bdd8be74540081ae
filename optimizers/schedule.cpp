#include "optimizers/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::optimizers {
namespace {

/// From `from` to `to` along half a cosine.
double along_cosine(double from, double to, double progress) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

double one_cycle(const rate_schedule& schedule, double progress) {
  if (progress < schedule.peak) return along_cosine(schedule.start, 1, progress / schedule.peak);
  if (schedule.peak >= 1) return 1;
  return along_cosine(1, schedule.end, (progress - schedule.peak) / (1 - schedule.peak));
}

/// `done` of `total` steps of the curve are over.
double on_curve(const rate_schedule& schedule, std::uint64_t done, std::uint64_t total) {
  if (schedule.curve == rate_curve::constant) return 1;
  if (schedule.curve == rate_curve::step) {
    const std::uint64_t changes = done / std::max<std::uint64_t>(1, schedule.step_every);
    return std::pow(schedule.step_factor, static_cast<double>(changes));
  }
  if (total == 0) return 1;
  const double progress = static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  switch (schedule.curve) {
    case rate_curve::linear:
      return schedule.end + (1 - schedule.end) * (1 - progress);
    case rate_curve::cosine:
      return along_cosine(1, schedule.end, progress);
    case rate_curve::polynomial:
      return schedule.end + (1 - schedule.end) * std::pow(1 - progress, schedule.power);
    default:
      return one_cycle(schedule, progress);
  }
}

}  // namespace

double rate_share(const rate_schedule& schedule, std::uint64_t step,
                  std::uint64_t total_steps) noexcept {
  if (step <= schedule.warmup)
    return static_cast<double>(step) / static_cast<double>(schedule.warmup);
  const std::uint64_t begun = step - std::min<std::uint64_t>(step, 1);
  return on_curve(schedule, begun - std::min(begun, schedule.warmup),
                  total_steps - std::min(total_steps, schedule.warmup));
}

}  // namespace troupe::optimizers
